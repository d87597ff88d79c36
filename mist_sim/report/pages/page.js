// Tells the values of lines under the pointer.
for (const svg of document.querySelectorAll("svg[data-panels]")) {
  const panels = JSON.parse(svg.dataset.panels);
  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const told = (name, xs, ys, at) => {
    let near = 0;
    xs.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(xs[near] - at)) near = k; });
    return `${name}: ${ys[near] ?? "-"} at ${xs[near]}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const x = (event.clientX - frame.left) / frame.width;
    const y = (frame.bottom - event.clientY) / frame.height;
    const panel = panels.find(({box: [left, bottom, width, height]}) =>
      x >= left && x <= left + width && y >= bottom && y <= bottom + height);
    tip.hidden = !panel;
    if (!panel) return;
    const [from, to] = panel.ends;
    const at = from + (x - panel.box[0]) / panel.box[2] * (to - from);
    tip.textContent = panel.lines.map(([name, xs, ys]) => told(name, xs, ys, at)).join("\n");
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 12}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}
