"""Draw the picture of a benchmark: bus bandwidth over size. Given, not graded."""

import io
import math
from types import ModuleType

from handout.bandwidth.machine import in_memory
from handout.bandwidth.units import size_text


def draw(student: ModuleType, environment: dict, rows: list[dict], fits: dict) -> bytes:
    """Return a PNG of the bus bandwidth over the size S.

    For each collective, the picture shows the measured bandwidth. A dashed line shows the bandwidth
    that the fitted model predicts. If the driver says how fast the links of the GPUs are, a dotted
    line shows this speed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes, n = figure.add_subplot(), environment["ranks"]
    handles = []
    for number, collective in enumerate(dict.fromkeys(row["collective"] for row in rows)):
        done = [row for row in rows if row["collective"] == collective and not row["skipped"]]
        sizes, measured = [row["size"] for row in done], [row["busbw"] for row in done]
        colour, marker = f"C{number}", "osD^vP*X"[number % 8]
        handles += axes.plot(
            sizes, measured, label=collective, color=colour, marker=marker, markersize=5
        )
        if collective in fits:
            between = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
            times = [
                student.predict_seconds(fits[collective]["alpha"], fits[collective]["beta"], s)
                for s in between
            ]
            # If α is negative, the model can predict negative times for small sizes.
            curve = [
                (s, student.bus_bandwidth(collective, s, n, t))
                for s, t in zip(between, times)
                if t > 0
            ]
            axes.plot(*zip(*curve), color=colour, linestyle="--", linewidth=1)
    if link := environment["link"]:
        label = f"{link['name']}: {link['bandwidth']:.0f} GB/s in theory"
        handles.append(axes.axhline(link["bandwidth"], color="black", linestyle=":", label=label))
    if fits:
        handles.append(
            Line2D([], [], color="black", linestyle="--", linewidth=1, label="fit t = α + S/β")
        )
    sizes = sorted({row["size"] for row in rows if not row["skipped"]}) or [1]
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    ticks = [2**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 10)))]
    axes.set_xticks(ticks, [size_text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size S of the whole array")
    axes.set_ylabel("bus bandwidth, GB/s (10⁹ bytes per second)")
    axes.grid(alpha=0.3)
    note = "\ncopies in the memory of one machine, not a network" if in_memory(environment) else ""
    ranks = f"{n} rank{'s' if n > 1 else ''}, {environment['backend']}, {rows[0]['dtype']}"
    axes.set_title(f"{environment['hardware']} · {ranks}{note}", fontsize=11)
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
