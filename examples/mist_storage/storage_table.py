"""The table of the storage study, and its picture."""

from storage_cases import CASES, CONTEXTS, NAMES, found_share


def table(printed, highest, together, options):
    """Lines of the table, and the order of the cases by P90."""
    rate = options["rate"]
    for (context, access), group in groups(together).items():
        common = group[0][3]
        yield f"{context:,} tokens, {access} contexts          E2E in s at {common:.0f} /s"
        yield (
            f"  case         found  store   P50    P90    P99  verdict   sustains  stable at"
            f"  at {rate:g} /s: use, P90"
        )
        for point in group:
            row, case = point[:3], point[2]
            now, first = together[point], printed[row]
            verdict = printed_verdict(first, rate)
            keeps = verdict == "stable"
            most = first["sustained"]
            use = f"{100 * rate / most:.0f} %" if most < rate else "< 100 %" if keeps else "?"
            sustains = f"{most:.0f}" if most < rate else f">= {rate:.0f}" if keeps else "?"
            yield (
                f"  {NAMES[case]:12} {100 * found_share(*row, options):4.0f} % "
                f"{100 * now['store_load']:4.0f} % {now['p50_e2el_ms'] / 1e3:6.2f} "
                f"{now['p90_e2el_ms'] / 1e3:6.2f} {now['p99_e2el_ms'] / 1e3:6.2f}  "
                f"{now['stability']:9} {sustains:>6} /s "
                f"{format(highest[row], '.0f') if row in highest else '?':>8} /s   {use:>7} "
                f"{first['p90_e2el_ms'] / 1e3:7.1f} {verdict}"
            )
        order = sorted(group, key=lambda point: together[point]["p90_e2el_ms"])
        yield "  by P90: " + " < ".join(point[2] for point in order) + "\n"


def printed_verdict(found, rate):
    """Stable or not at a rate; what sustains far less cannot keep up, however short the run."""
    return "unstable" if found["sustained"] < 0.9 * rate else found["stability"]


def groups(together):
    """The points of each context and access; without a store shared is as private."""
    found = {}
    for context in CONTEXTS:
        none = next(p for p in together if p[0] == context and p[2] == "E")
        for access in ("private", "shared"):
            mine = [p for p in together if p[:2] == (context, access) and p[2] != "E"]
            found[context, access] = [*mine, none]
    return found


def draw(together, path):
    """The CDFs of the end-to-end latency, as in MIST's Fig. 13."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    colors = dict(zip(CASES, ("#2a6f97", "#2a9d8f", "#e07b39", "#8a5a9e", "#c1121f"), strict=True))
    for axes, ((context, access), group) in zip(panels.flat, groups(together).items(), strict=True):
        for point in group:
            case = point[2]
            style = "--" if case in "DE" else "-"
            cdf = together[point]["cdf"]
            axes.plot(cdf, range(101), style, color=colors[case], label=NAMES[case])
        axes.set(xscale="log", ylim=(0, 100), xlabel="end-to-end latency, s")
        axes.set(title=f"{context:,} tokens, {access}, {group[0][3]:.0f} requests/s")
        axes.set_ylabel("requests, %")
        axes.axhline(90, color="grey", lw=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
