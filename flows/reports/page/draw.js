// Draw every figure in the colours of the page; redraw for a change between light and dark, and for print.
(function () {
  "use strict";
  var packed = document.getElementById("plotly");
  if (!packed) return;
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var drawn = {};
  var NARROW = 560;
  var PAPER_WIDTH = 660;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function pale(hex, share) {
    var n = parseInt(hex.slice(1), 16);
    return "rgba(" + [n >> 16, (n >> 8) & 255, n & 255, share].join(",") + ")";
  }

  function axis(given) {
    return Object.assign({ gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), fixedrange: true }, given);
  }

  function paintSankey(trace) {
    trace.node.color = trace.meta.node_roles.map(colour);
    trace.node.line = { width: 0 };
    trace.link.color = trace.meta.link_roles.map(function (role) { return pale(colour(role), 0.38); });
    trace.textfont = { color: colour("ink"), shadow: "none" };
  }

  function paint(given, narrow) {
    var copy = JSON.parse(JSON.stringify(narrow && given.narrow ? given.narrow : given));
    copy.data.forEach(function (trace) {
      if (trace.type === "sankey") return paintSankey(trace);
      var shade = colour(trace.meta.role);
      if (trace.type === "bar") {
        trace.marker = { color: shade };
        trace.textfont = { color: colour("ink") };
      } else if (trace.type === "scatter") {
        trace.line = Object.assign({ color: shade, width: 2 }, trace.line);
        trace.marker = Object.assign({ size: 8 }, trace.marker, { color: shade });
        if (trace.marker.line) trace.marker.line.color = /-open$/.test(trace.marker.symbol) ? shade : colour("card");
      }
      ["error_x", "error_y"].forEach(function (bar) { if (trace[bar]) trace[bar].color = shade; });
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
    var legend = layout.legend && layout.showlegend !== false;
    if (legend && narrow) {
      // There is room for one entry on a line: the legend grows the figure, instead of scrolling.
      layout.legend.maxheight = 1;
      layout.height += 17 * (copy.data.filter(function (trace) { return trace.name && trace.showlegend !== false; }).length - 1);
    }
    layout.margin = Object.assign({ l: narrow ? 52 : 64, r: layout.yaxis5 ? 60 : 10, t: legend || layout.coloraxis ? 26 : 12, b: 44 }, layout.margin);
    layout.hoverlabel = { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } };
    return copy;
  }

  function draw(place, width) {
    var narrow = (width || place.clientWidth) < NARROW;
    var figure = paint(figures[place.id.slice(7)], narrow);
    place.style.height = figure.layout.height + "px";
    place.style.minHeight = "0";
    delete figure.layout.height;
    figure.layout.autosize = !width;
    if (width) figure.layout.width = width;
    // Plotly does not update the nodes of an existing Sankey diagram.
    if (figure.data[0].type === "sankey") Plotly.purge(place);
    Plotly.react(place, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    if (!drawn[place.id] && place.id === "figure-training") place.on("plotly_click", chosen);
    drawn[place.id] = narrow ? "narrow" : "wide";
  }

  // From a point of the loss to the documents that its step read, or to the command that shows them.
  function chosen(event) {
    var point = event.points.find(function (one) { return one.customdata !== undefined; });
    var steps = document.getElementById("steps");
    if (!point || !steps) return;
    var wanted = Number(point.customdata);
    var all = Array.from(steps.querySelectorAll("[data-step]"));
    var nearest = all.reduce(function (best, one) {
      return Math.abs(one.dataset.step - wanted) < Math.abs(best.dataset.step - wanted) ? one : best;
    });
    document.getElementById("step-command").textContent = steps.dataset.command.replace("{step}", String(wanted));
    document.getElementById("all-steps").open = true;
    all.forEach(function (one) { one.open = one === nearest; });
    nearest.scrollIntoView({ block: "center" });
  }

  function unpack() {
    var bytes = Uint8Array.from(atob(packed.textContent), function (letter) { return letter.charCodeAt(0); });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text().then(function (script) {
      var element = document.createElement("script");
      element.textContent = script;
      document.head.appendChild(element);
      packed.remove();
    });
  }

  var places = Object.keys(figures)
    .map(function (name) { return document.getElementById("figure-" + name); })
    .filter(Boolean);
  var idle = window.requestIdleCallback || function (task) { return setTimeout(task, 60); };

  function drawRest() {
    var next = places.find(function (place) { return !drawn[place.id]; });
    if (!next) return;
    draw(next);
    idle(drawRest);
  }

  function start() {
    // Visible figures are drawn first; the others follow when the browser is idle, so that all can be printed.
    var sight = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting) return;
        sight.unobserve(entry.target);
        if (!drawn[entry.target.id]) draw(entry.target);
      });
    }, { rootMargin: "300px" });
    places.forEach(function (place) { sight.observe(place); });
    idle(drawRest);
  }

  function again() {
    places.forEach(function (place) { if (drawn[place.id]) draw(place); });
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", function () {
    places.forEach(function (place) {
      var now = place.clientWidth < NARROW ? "narrow" : "wide";
      if (drawn[place.id] && drawn[place.id] !== now) draw(place);
    });
  });
  window.addEventListener("beforeprint", function () {
    document.documentElement.classList.add("printing");
    if (typeof Plotly !== "undefined") places.forEach(function (place) { draw(place, PAPER_WIDTH); });
  });
  window.addEventListener("afterprint", function () {
    document.documentElement.classList.remove("printing");
    again();
  });
  // The text of the page is painted before the script is unpacked.
  requestAnimationFrame(function () {
    setTimeout(function () {
      unpack().then(start).catch(function (error) {
        places.forEach(function (place) { place.textContent = "This figure could not be drawn: " + error; });
      });
    });
  });
})();
