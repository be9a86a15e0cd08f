"""Draws how fast bytes move over different links, and which devices the links connect."""

from math import log10

from grader.figures.picture import Picture

# Name, bytes per second in one direction, and this rate as text. A table in handout/ASSIGNMENT.md
# gives the source of each rate.
LINKS = [
    ("shared memory of all SMs, one GPU", 30e12, "about 30 TB/s"),
    ("HBM3, one GPU", 3.35e12, "3.35 TB/s"),
    ("NVLink 4 through NVSwitch, one GPU", 450e9, "450 GB/s"),
    ("PCIe 5.0, 16 lanes", 63e9, "63 GB/s"),
    ("InfiniBand or RoCE, one 400 Gb/s port", 50e9, "50 GB/s"),
    ("Ethernet, 10 Gb/s", 1.25e9, "1.25 GB/s"),
    ("Ethernet, 1 Gb/s", 0.125e9, "0.125 GB/s"),
]
SLOWEST, DECADES = 7.5, 6  # the power of ten at which the scale begins, and its length in decades


def links() -> Picture:
    described = (
        "Bars on a logarithmic scale. "
        + "; ".join(f"{name}: {rate}" for name, _, rate in LINKS)
        + "."
    )
    picture = Picture(
        340,
        26 + 38 * len(LINKS),
        "From fast and near to slow and far: one H100 and its links",
        described,
    )
    picture.text(0, 13, "Each mark means ten times the rate of the mark before.", 11)
    for index, (name, rate, written) in enumerate(LINKS):
        y = 24 + index * 38
        picture.text(0, y + 12, name, 12)
        picture.text(340, y + 12, written, 12, "end", "bold")
        picture.rect(0, y + 17, 340, 11, "idle")
        for power in range(8, 14):
            picture.line(
                340 * (power - SLOWEST) / DECADES, y + 28, 340 * (power - SLOWEST) / DECADES, y + 32
            )
        where = "computing" if index < 2 else "communicating"  # in one GPU, or between devices
        picture.rect(0, y + 17, 340 * (log10(rate) - SLOWEST) / DECADES, 11, where)
    return picture


def nodes() -> Picture:
    described = (
        "Two nodes. In each, the GPUs are joined by NVSwitch over NVLink, and by PCIe to the CPU"
        " and to network cards. The network cards of both nodes meet in InfiniBand or Ethernet"
        " switches. NVSwitch does not reach from one node to the other."
    )
    picture = Picture(340, 222, "What joins the GPUs of a node, and what joins nodes", described)
    for node in range(2):
        x = node * 176
        picture.text(x + 82, 13, f"node {node}", 12, "middle", "bold")
        picture.rect(x + 0.5, 20, 163, 148, "empty", 4)
        picture.block(x + 8, 28, 148, 22, "communicating", "NVSwitch")
        for gpu in range(4):
            left = x + 8 + gpu * 38
            picture.line(left + 17, 50, left + 17, 66)
            picture.block(left, 66, 34, 26, "computing", "GPU")
            picture.line(left + 17, 92, left + 17, 108)
            picture.line(left + 17, 128, left + 17, 142)
            picture.block(left, 142, 34, 20, "communicating", "NIC")
            picture.line(left + 17, 162, left + 17, 186)
        picture.block(x + 8, 108, 148, 20, "communicating", "PCIe, and the CPU")
    picture.block(0, 186, 340, 24, "communicating", "InfiniBand or Ethernet switches")
    return picture
