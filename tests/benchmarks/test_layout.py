"""The layout grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from benchmarks.registry import AXES, names

KNOBS = st.dictionaries(
    st.sampled_from(["reshard", "bucket_mb", "how", "rate"]),
    st.one_of(st.booleans(), st.integers(-5, 5000), st.sampled_from(["none", "bf16-master"])),
    max_size=2,
)


@st.composite
def written(draw: st.DrawFn) -> str:
    """A layout in its canonical form."""
    parts = []
    for axis, folder in AXES.items():
        if draw(st.booleans()):
            degree = "x".join(map(str, draw(st.lists(st.integers(2, 8), min_size=1, max_size=2))))
            knobs = ",".join(f"{k}={str(v).lower()}" for k, v in sorted(draw(KNOBS).items()))
            parts.append(f"{axis}={degree}:{draw(st.sampled_from(names(folder)))}" + (f"[{knobs}]" if knobs else ""))
    return ",".join(parts) or "single"


@given(written())
def test_what_is_written_is_read_and_written_again(text: str):
    layout = Layout.parse(text)
    assert str(layout) == text
    assert Layout.model_validate(layout.model_dump()) == layout


def test_axes_come_in_one_order_with_their_defaults():
    assert str(Layout.parse("dp=2, tp=4 ,pp=2")) == "pp=2:1f1b,tp=4:dtensor,dp=2:ddp"


def test_an_axis_of_one_is_no_axis():
    assert str(Layout.parse("pp=1,tp=1,dp=1")) == "single"


def test_degrees_multiply():
    layout = Layout.parse("pp=2:gpipe,dp=2x3:fsdp")
    assert (layout.degree("dp"), layout.degree("tp"), layout.devices, layout.family) == (6, 1, 12, "pp:gpipe+dp:fsdp")


def test_knobs_keep_their_kinds():
    knobs = dict(Layout.parse("dp=2:fsdp[reshard=false,size=3,rate=0.5,how=full]").axes[0].knobs)
    assert knobs == {"reshard": False, "size": 3, "rate": 0.5, "how": "full"}


@pytest.mark.parametrize(
    ("open_layout", "world", "filled"),
    [("dp=*:ddp", 4, "dp=4:ddp"), ("tp=2:hand,dp=*:ddp", 4, "tp=2:hand,dp=2:ddp"), ("dp=*:ddp", 1, "single")],
)
def test_a_star_is_what_is_left(open_layout: str, world: int, filled: str):
    assert str(Layout.parse(open_layout).resolve(world)) == filled


def test_a_star_that_is_no_whole_number():
    assert Layout.parse("tp=2:hand,dp=*:ddp").resolve(3) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp=2:fsdq", "did you mean 'fsdp'"),
        ("dq=2", "unknown axis 'dq'"),
        ("dp=2,dp=4", "stands twice"),
        ("dp=0", "below 1"),
        ("dp", "a layout is written"),
        ("", "a layout is written"),
        ("dp=2:fsdp[reshard]", "knob=value"),
        ("dp=2:fsdp[reshard=true,reshard=false]", "stands twice"),
        ("tp=2:../../x", "a layout is written"),
    ],
)
def test_what_cannot_be_read(text: str, said: str):
    with pytest.raises(UsageError, match="(?s)" + said.replace("(", r"\(")):
        Layout.parse(text)


def test_two_stars():
    with pytest.raises(UsageError, match="may stand once"):
        Layout.parse("dp=*:ddp,tp=*:hand").resolve(4)


def test_each_implementation_in_the_place_of_a_star():
    dp, tp = names("data_parallel"), names("tensor_parallel")
    assert Layout.each("tp=2:*,dp=*:*") == [f"tp=2:{t},dp=*:{d}" for t in tp for d in dp]
    assert Layout.each("tp=2:hand[sequence=true,loss=true],dp=4:*") == [
        f"tp=2:hand[sequence=true,loss=true],dp=4:{d}" for d in dp
    ]
    assert Layout.each("single") == ["single"]
    assert Layout.each("xp=2:*") == ["xp=2:*"]  # which parse then refuses by name
