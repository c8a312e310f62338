from dap.report.series import name_series


def test_options_that_differ_name_the_rows():
    options = {"prune.alpha": 1.0, "dense.objective": "erm"}
    models = [("DAP", options, "x"), ("DAP", {**options, "prune.alpha": 0.0}, "x"), ("Taylor", options, "x")]
    assert [name for name, _ in name_series(models)] == ["DAP (alpha 1.0)", "DAP (alpha 0.0)", "Taylor"]


def test_what_an_objective_or_a_suite_brings_with_it_is_not_named():
    erm = {"dense.objective": "erm", "dense.train.learning_rate": 5e-5, "dense.suite": "x"}
    miro = {"dense.objective": "miro", "dense.train.learning_rate": 3e-5, "dense.suite": "x"}
    other = {"dense.objective": "erm", "dense.train.learning_rate": 1e-5, "dense.suite": "y"}
    models = [("Dense", erm, "x"), ("DAP", erm, "x"), ("DAP", miro, "x"), ("DAP", other, "y")]
    assert name_series(models) == [
        ("ERM", "ERM"), ("ERM + DAP", "ERM"), ("MIRO + DAP", "MIRO"), ("ERM + DAP", "ERM"),
    ]  # fmt: skip


def test_each_pruning_finds_the_dense_model_it_comes_from():
    short, long = ({"dense.objective": "erm", "dense.train.steps": steps} for steps in (10, 20))
    models = [
        ("Dense", short, "x"),
        ("Dense", long, "x"),
        ("DAP", short, "x"),
        ("Taylor", long, "x"),
        ("Taylor", short, "x"),
    ]
    named = name_series(models)
    assert [ours for ours, _ in named] == [
        "Dense (steps 10)",
        "Dense (steps 20)",
        "DAP",
        "Taylor (steps 20)",
        "Taylor (steps 10)",
    ]
    assert [dense for _, dense in named[2:]] == ["Dense (steps 10)", "Dense (steps 20)", "Dense (steps 10)"]
