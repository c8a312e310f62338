"""The paper and nothing else: gates, sensitivity, schedules, gradients, one step (`Pruner`), many (`learn_masks`)."""
