// A readout for the loss chart: the nearest point under the pointer, or the one chosen with the arrow keys.
"use strict";

const NAMESPACE = "http://www.w3.org/2000/svg";

function arm(chart) {
  chart.dataset.armed = "1";
  for (const svg of chart.querySelectorAll("svg[data-points]")) {
    const points = JSON.parse(svg.dataset.points);
    if (points.length === 0) continue;
    const readout = chart.parentElement.querySelector(".readout");
    const cross = document.createElementNS(NAMESPACE, "line");
    const knob = document.createElementNS(NAMESPACE, "circle");
    cross.setAttribute("class", "cross");
    knob.setAttribute("class", "knob");
    knob.setAttribute("r", "5");
    let chosen = points.length - 1;

    const show = (index) => {
      chosen = Math.max(0, Math.min(points.length - 1, index));
      const [x, y, text] = points[chosen];
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", svg.dataset.top], ["y2", svg.dataset.bottom]]) {
        cross.setAttribute(name, value);
      }
      knob.setAttribute("cx", x);
      knob.setAttribute("cy", y);
      svg.append(cross, knob);
      readout.textContent = text;
    };
    const hide = () => {
      cross.remove();
      knob.remove();
      readout.textContent = "";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      let best = 0;
      points.forEach(([x], index) => {
        if (Math.abs(x - at) < Math.abs(points[best][0] - at)) best = index;
      });
      show(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("focus", () => show(chosen));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      show(chosen + step);
    });
  }
}

document.querySelectorAll(".chart").forEach(arm);
document.addEventListener("swapped", () => {
  for (const chart of document.querySelectorAll(".chart")) if (!chart.dataset.armed) arm(chart);
});
