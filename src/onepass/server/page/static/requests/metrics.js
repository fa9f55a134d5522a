// Prometheus text as numbers, and what changed between two readings of it.

// Sums of each metric over its labels: {onepass_items_total: 12, …}. Histograms keep _sum and _count.
export function parseMetrics(text) {
  const totals = {};
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/.exec(line);
    if (match === null || match[1].endsWith("_bucket")) continue;
    const value = Number(match[2]);
    if (Number.isFinite(value)) totals[match[1]] = (totals[match[1]] ?? 0) + value;
  }
  return totals;
}

// The last readings, each with its time; rates are between neighbours. A counter that fell began again: its rate is unknown.
export class Readings {
  constructor(count) {
    this.count = count;
    this.list = [];
  }

  add(metrics, at) {
    this.list.push({ metrics, at });
    if (this.list.length > this.count) this.list.shift();
  }

  level(name) {
    return this.list.map(({ metrics, at }) => ({ at, value: metrics[name] ?? null }));
  }

  rate(name) {
    return this.between((a, b, seconds) => difference(a, b, name, seconds));
  }

  // What grew in `name` per unit that `per` grew by, such as seconds per request.
  ratio(name, per) {
    return this.between((a, b) => {
      const top = difference(a, b, name, 1),
        bottom = difference(a, b, per, 1);
      return top === null || !bottom ? null : top / bottom;
    });
  }

  between(value) {
    return this.list.slice(1).map((after, at) => {
      const before = this.list[at];
      return { at: after.at, value: value(before.metrics, after.metrics, (after.at - before.at) / 1000) };
    });
  }
}

function difference(before, after, name, seconds) {
  if (after[name] === undefined || before[name] === undefined || after[name] < before[name]) return null;
  return (after[name] - before[name]) / seconds;
}
