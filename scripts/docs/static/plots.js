// Plots of the page `performance`: one row for each problem, on a logarithmic axis.
(() => {
  const place = document.getElementById("plots");
  if (!place) return;
  const data = JSON.parse(document.getElementById("measured").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const ROW = 18, LEFT = 8, TOP = 26;

  const make = (name, attributes = {}, text = "") => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };

  const choice = (label, values, changed) => {
    const box = document.createElement("label");
    box.textContent = `${label} `;
    const select = document.createElement("select");
    for (const value of values) select.add(new Option(value, value));
    select.addEventListener("change", changed);
    box.append(select);
    return [box, select];
  };

  const controls = document.createElement("div");
  controls.className = "plot-controls";
  const summary = document.createElement("p");
  const told = document.createElement("p");
  told.className = "plot-told";
  told.setAttribute("aria-live", "polite");
  const figure = document.createElement("div");
  place.append(controls, summary, told, figure);

  const [setBox, set] = choice("Measurement", Object.keys(data), () => fill());
  const [opBox, op] = choice("Operation", [], () => draw());
  const [partBox, part] = choice("Part or peer", [], () => draw());
  const [shapeBox, shape] = choice("Shape", [], () => draw());
  const findBox = document.createElement("label");
  findBox.textContent = "Problem contains ";
  const find = document.createElement("input");
  find.type = "search";
  find.size = 8;
  find.addEventListener("input", () => draw());
  findBox.append(find);
  const [orderBox, order] = choice("Order", ["by speed", "as recorded"], () => draw());
  controls.append(setBox, opBox, shapeBox, partBox, findBox, orderBox);

  const options = (select, rows, key) => {
    select.replaceChildren(new Option("all", "all"));
    for (const value of [...new Set(rows.map((row) => row[key]))]) select.add(new Option(value, value));
  };

  function fill() {
    const rows = data[set.value].rows;
    options(op, rows, "op");
    options(shape, rows, "shape");
    options(part, rows, "part");
    draw();
  }

  const mean = (values) => Math.exp(values.reduce((sum, one) => sum + Math.log(one), 0) / values.length);

  function sentence(row, found) {
    const [value, low, high] = row.speed;
    const parts = [`${row.problem}: ${value.toFixed(3)} of ${row.peer}`];
    if (low) parts.push(`95 % interval ${low.toFixed(3)} to ${high.toFixed(3)}`);
    if (row.us) parts.push(`${row.us} µs, ${row.peer}: ${row.peer_us} µs`);
    if (row.limit_us) parts.push(`limit by ${row.limit}: ${row.limit_us.toFixed(2)} µs`);
    if (row.schedule) parts.push(row.schedule);
    parts.push(row.file ? `recorded in ${row.file}` : `${found.machine}, commit ${found.commit}`);
    return parts.join("; ");
  }

  function draw() {
    const found = data[set.value];
    const plain = (text) => text.replaceAll("×", "x").toLowerCase();
    const chosen = { op, shape, part };
    const rows = found.rows.filter(
      (row) =>
        Object.entries(chosen).every(([key, select]) => select.value === "all" || row[key] === select.value) &&
        plain(row.problem).includes(plain(find.value)),
    );
    if (order.value === "by speed") rows.sort((one, other) => one.speed[0] - other.speed[0]);
    figure.replaceChildren();
    told.textContent = "";
    if (!rows.length) {
      summary.textContent = "No problem has all of this.";
      return;
    }
    const values = rows.map((row) => row.speed[0]);
    summary.textContent =
      `${rows.length} problems, geometric mean ${mean(values).toFixed(3)}, least ${Math.min(...values).toFixed(3)}` +
      (found.machine ? `; ${found.machine}, commit ${found.commit}` : "");
    const width = Math.max(300, figure.clientWidth);
    const name = Math.min(300, width * 0.48);
    const low = Math.min(0.8, ...rows.map((row) => row.speed[1] || row.speed[0]));
    const high = Math.max(1.25, ...rows.map((row) => row.speed[2] || row.speed[0]));
    const x = (value) =>
      LEFT + name + ((width - name - 3 * LEFT) * (Math.log(value) - Math.log(low))) / (Math.log(high) - Math.log(low));
    const height = TOP + rows.length * ROW + 6;
    const svg = make("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
      "aria-label": "Speed relative to the fastest other library, one row for each problem",
    });
    for (const tick of [0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50]) {
      if (tick < low || tick > high) continue;
      svg.append(make("line", { x1: x(tick), x2: x(tick), y1: TOP - 6, y2: height, class: tick === 1 ? "one" : "tick" }));
      svg.append(make("text", { x: x(tick), y: 14, "text-anchor": "middle" }, String(tick)));
    }
    rows.forEach((row, number) => {
      const y = TOP + number * ROW + ROW / 2;
      const [value, least, most] = row.speed;
      const group = make("g", { tabindex: 0, role: "img", "aria-label": sentence(row, found), class: "row" });
      group.append(make("rect", { x: 0, y: y - ROW / 2, width, height: ROW, class: "back" }));
      const letters = Math.floor(name / 6.4);
      const label = row.problem.length > letters ? `${row.problem.slice(0, letters - 1)}…` : row.problem;
      group.append(make("text", { x: LEFT, y: y + 4 }, label));
      if (least) group.append(make("line", { x1: x(least), x2: x(most), y1: y, y2: y, class: "interval" }));
      group.append(make("circle", { cx: x(value), cy: y, r: 4, class: value >= 1 ? "faster" : "slower" }));
      for (const event of ["pointerenter", "focus"]) {
        group.addEventListener(event, () => { told.textContent = sentence(row, found); });
      }
      svg.append(group);
    });
    figure.append(svg);
  }

  fill();
  let known = figure.clientWidth;
  new ResizeObserver(() => {
    if (figure.clientWidth !== known) { known = figure.clientWidth; draw(); }
  }).observe(place);
})();
