"""Networks that classify images and show the features behind their logits."""

from dap.models.backbones import create_classifier
from dap.models.classifier import Classifier, Recipe
from dap.models.saved import ModelCard, load_classifier, save_classifier
from dap.models.small_resnet import small_resnet
from dap.models.sparse import load_sparse, save_sparse
from dap.models.weights import LoadReport, load_weights

__all__ = [
    "Classifier",
    "LoadReport",
    "ModelCard",
    "Recipe",
    "create_classifier",
    "load_classifier",
    "load_sparse",
    "load_weights",
    "save_classifier",
    "save_sparse",
    "small_resnet",
]
