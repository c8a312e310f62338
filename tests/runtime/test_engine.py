import threading
import time
from itertools import count, islice

import pytest

import dap
from dap.runtime.engine import ahead


def test_items_are_made_ahead_in_their_order():
    made = []

    def items():
        for item in count():
            made.append((item, threading.current_thread() is threading.main_thread()))
            yield item

    stream = ahead(items())
    assert next(stream) == 0
    time.sleep(0.2)
    assert [item for item, _ in made] == [0, 1]  # the next one is ready, no more
    assert list(islice(stream, 3)) == [1, 2, 3]
    assert not any(main for _, main in made)


def test_an_error_ahead_is_raised_where_its_item_was_due():
    def items():
        yield 1
        raise OSError("disk gone")

    stream = ahead(items())
    assert next(stream) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(stream)


def test_a_precision_without_its_care_is_refused():
    with pytest.raises(dap.DapError, match="precision is '16-mixed'; choose one of 32-true, bf16-mixed"):
        dap.launch(precision="16-mixed")


def test_devices_that_are_not_there_are_named():
    with pytest.raises(dap.DapError, match="cannot run on accelerator=cuda, devices=2, nodes=1, precision=32-true"):
        dap.launch(devices=2, accelerator="cuda")
