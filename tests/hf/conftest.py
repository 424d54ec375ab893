"""What all tests of tiny models share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """These models are too small to share."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _in_place_however_small() -> Any:
    """As for long prompts, whose heads are rotated in place if nobody else sees them.

    Calls of one token, which go to native code at once, have test_decode.py.
    """
    pytest.importorskip("torch")
    from posenc_native.hf import functions, holders

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "SMALLEST", 0)
        patch.setattr(functions, "settled_rotations", lambda *_arguments, **_options: ())
        yield


@pytest.fixture
def rotated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every rotation by a learned function, whether it is in place; not those that learn it."""
    pytest.importorskip("torch")
    from posenc_native.hf.learned import functions, rotations

    seen: list[bool] = []
    rotate = rotations.apply_rotary

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["out"] is not None)
        return rotate(*args, **kwargs)

    def uncounted(function: Any) -> Any:
        def learning(*args: Any) -> Any:
            before = len(seen)
            result = function(*args)
            del seen[before:]
            return result

        return learning

    monkeypatch.setattr(rotations, "apply_rotary", counted)
    for name in ("_learn", "_agrees_in_full"):
        monkeypatch.setattr(functions, name, uncounted(getattr(functions, name)))
    return seen
