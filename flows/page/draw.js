// Draws every figure of the page in the colours of the page, again when the system turns dark or light.
(function () {
  "use strict";
  if (typeof Plotly === "undefined") return;
  var figures = JSON.parse(document.getElementById("figures").textContent);

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function axis(given) {
    return Object.assign({ gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), fixedrange: true }, given);
  }

  function paint(figure, narrow) {
    var copy = JSON.parse(JSON.stringify(figure));
    copy.data.forEach(function (trace) {
      var shade = colour(trace.meta.role);
      if (trace.type === "bar") trace.marker = { color: shade };
      else if (trace.type === "scatter") {
        trace.line = { color: shade, width: 2 };
        trace.marker = Object.assign({ size: 8 }, trace.marker, { color: shade });
        if (trace.marker.line) trace.marker.line.color = colour("card");
      }
      if (trace.error_y) trace.error_y.color = shade;
    });
    var layout = copy.layout;
    Object.keys(layout).forEach(function (key) {
      if (/^[xy]axis/.test(key)) layout[key] = axis(layout[key]);
    });
    if (layout.coloraxis) {
      layout.coloraxis.colorscale = [0, 1, 2, 3].map(function (step) { return [step / 3, colour("heat" + step)]; });
    }
    (layout.shapes || []).forEach(function (shape) { shape.line.color = colour("soft"); });
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { color: colour("ink"), family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13 };
    layout.margin = { l: narrow ? 52 : 64, r: 8, t: 26, b: 44 };
    layout.hoverlabel = { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } };
    return copy;
  }

  function draw() {
    Object.keys(figures).forEach(function (name) {
      var place = document.getElementById("figure-" + name);
      if (!place) return;
      var figure = paint(figures[name], place.clientWidth < 500);
      place.style.height = figure.layout.height + "px";
      delete figure.layout.height;
      figure.layout.autosize = true;
      Plotly.react(place, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
  }

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
