"""A cluster's file: what it gives, and that each mistake in it is one sentence."""

import math

import pytest

from grader.selftest.grading import ROOT
from grader.timeline.cluster import KEYS, MAY_LACK, BadCluster, Cluster, Link, plain, read
from grader.wire.events import KINDS
from grader.wire.tiers import MAX_RANKS

GOOD = """
[cluster]
name = two nodes ; a comment
ranks = 4
devices_per_node = 2
flop_per_second = 2e12
scale = 8
bytes_per_number = 2

[within a node]
latency_seconds = 1e-6
bytes_per_second = 100e9

[between nodes]
latency_seconds = 0      # none
bytes_per_second = inf
"""


def of(tmp_path, text: str | bytes) -> Cluster:
    path = tmp_path / "mine.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


def test_a_file_is_read(tmp_path):
    links = Link(1e-6, 100e9), Link(0.0, math.inf)
    assert of(tmp_path, GOOD) == Cluster(4, 2, 2e12, *links, 8.0, 2.0, "two nodes")
    # A Windows editor writes the file like this.
    assert of(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n")) == of(tmp_path, GOOD)


def test_every_kind_of_collective_has_a_time(tmp_path):
    cluster = of(tmp_path, GOOD)
    for kind in KINDS - {"send", "recv"}:
        assert cluster.collective(kind, range(4), 1e6) > 0, kind
    with pytest.raises(ValueError, match="no time is known for a_new_one"):
        cluster.collective("a_new_one", range(4), 1e6)


@pytest.mark.parametrize("key", MAY_LACK)
def test_some_keys_may_be_left_out(tmp_path, key):
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(key))
    assert getattr(of(tmp_path, text), key) in (None, "the cluster")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "handout" / "clusters").iterdir()), ids=lambda path: path.name
)
def test_the_examples_are_clusters_and_say_where_their_figures_are_from(path):
    assert read(path).name != "the cluster"
    text = path.read_text()
    assert f"CLUSTER=handout/clusters/{path.name}" in text and text.count("#") > 5
    assert max(map(len, text.splitlines())) <= 140


CHANGES = [
    ("ranks = 4", "ranks = 1", "ranks in [cluster] must be a whole number from 2 to 64, not '1'"),
    ("ranks = 4", f"ranks = {MAX_RANKS + 1}", "from 2 to 64, not '65'"),
    ("ranks = 4", "ranks = 4.5", "from 2 to 64, not '4.5'"),
    ("ranks = 4", "ranks = ²", "from 2 to 64, not '²'"),
    ("ranks = 4", "ranks =", "from 2 to 64, not ''"),
    ("ranks = 4", "ranks", "is not a file of sections, keys and values"),
    ("ranks = 4", "", "mine.ini: [cluster] has no ranks"),
    ("ranks = 4", "rank = 4", "[cluster] has no key rank; did you mean ranks?"),
    ("ranks = 4", "ranks = 4\nranks = 5", "is not a file of sections, keys and values"),
    ("ranks = 4", "ranks = 4\ncolour = red", "[cluster] has no key colour"),
    ("devices_per_node = 2", "devices_per_node = 0", "from 1 to 1024, not '0'"),
    ("2e12", "0", "flop_per_second in [cluster] must be a number above 0 up to 1e+21, not '0'"),
    ("2e12", "inf", "up to 1e+21, not 'inf'"),
    ("2e12", "nan", "not 'nan'"),
    ("2e12", "fast", "not 'fast'"),
    ("scale = 8", "scale = -8", "scale in [cluster] must be a number above 0"),
    ("scale = 8", "scale = 1e9", "up to 1e+06, not '1e9'"),
    ("bytes_per_number = 2", "bytes_per_number = 0", "above 0 up to 16, not '0'"),
    (
        "latency_seconds = 1e-6",
        "latency_seconds = -1",
        "latency_seconds in [within a node] must be a number from 0 to 10",
    ),
    ("latency_seconds = 1e-6", "latency_seconds = 11", "from 0 to 10, not '11'"),
    ("bytes_per_second = 100e9", "bytes_per_second = 0", "must be a number above 0, not '0'"),
    ("bytes_per_second = 100e9", "bytes_per_second = 100 GB", "not '100 GB'"),
    ("bytes_per_second = 100e9", "", "[within a node] has no bytes_per_second"),
    (
        "[between nodes]",
        "[between]",
        "[between] is not a section; there are [cluster], [within a node], [between nodes]",
    ),
    ("[between nodes]\n", "", "is not a file of sections, keys and values"),
    ("name = two nodes", "name = two\a", "name in [cluster] must be a line of text"),
    ("[cluster]", "", "is not a file of sections, keys and values"),
]


@pytest.mark.parametrize(
    "old, new, sentence",
    CHANGES,
    ids=[f"{new or 'no'} {i}" for i, (_, new, _) in enumerate(CHANGES)],
)
def test_a_mistake_is_one_sentence(tmp_path, old, new, sentence):
    assert old in GOOD
    with pytest.raises(BadCluster) as raised:
        of(tmp_path, GOOD.replace(old, new, 1))
    assert (
        sentence in str(raised.value)
        and "mine.ini" in str(raised.value)
        and "\n" not in str(raised.value)
    )


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe\x00", b"\x00" * 9, b"# nothing\n"],
    ids=["empty", "bytes", "zeros", "comment"],
)
def test_what_is_no_such_file_is_one_sentence(tmp_path, text):
    with pytest.raises(BadCluster, match="mine.ini (has no section|is not a file of sections)"):
        of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [' + "0, " * 9999,
        GOOD.replace("[cluster]", f"[\x1b{'c' * 9999}]"),
        GOOD.replace("ranks", f"\x1b{'r' * 9999}"),
        GOOD.replace("ranks = ", f"ranks = {'9' * 9999}"),
    ],
    ids=["another file", "section", "key", "value"],
)
def test_a_mistake_is_a_short_sentence_without_control_characters(tmp_path, text):
    with pytest.raises(BadCluster) as raised:
        of(tmp_path, text)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 600


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    for path in (tmp_path / "nowhere.ini", tmp_path):
        with pytest.raises(BadCluster, match="cannot be read"):
            read(path)


def test_a_section_that_is_missing_is_named(tmp_path):
    for section in KEYS:
        begin = GOOD.index(f"[{section}]")
        end = GOOD.find("\n[", begin)
        text = GOOD[:begin] + (GOOD[end:] if end > 0 else "")
        with pytest.raises(BadCluster, match=rf"mine.ini has no section \[{section}\]"):
            of(tmp_path, text)


@pytest.mark.parametrize(
    "value, text",
    [(0.0034, "0.0034"), (9.6, "9.6"), (999.4, "999"), (999.6, "1,000"), (36864, "36,864")],
)
def test_numbers_need_no_exponent(value, text):
    assert plain(value) == text


def test_the_assumptions_name_what_is_modelled_and_what_is_not(tmp_path):
    told = of(tmp_path, GOOD).assumptions()
    assert all(sentence.startswith(("Assumed: ", "Not modelled: ")) for sentence in told)
    assert (
        "two nodes, 4 devices, 2 in a node (2 nodes)" in told[0]
        and "α = 1 µs and β = 100 GB/s" in told[1]
    )
    assert (
        "2(n−1)(α + S/(nβ))" in told[2]
        and "64 times as many entries, and a product takes 512 times as many" in told[3]
    )
    assert "memory" in told[4] and "congestion" in told[4] and "products of matrices" in told[4]
