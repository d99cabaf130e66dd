// Charts over time: axes with units, stacked areas or lines, gaps where nothing was measured, and the value and time
// under the pointer or by arrow keys.

import { el, patch, svg } from './parts.js';
import { bytes, clock, minute } from './words.js';

const [TOP, RIGHT, BOTTOM, LEFT] = [12, 12, 24, 56];
// Shapes that tell areas apart without color.
const STRIPES = 'M-2 2L2 -2M0 8L8 0M6 10L10 6';
const DOTS = 'M1 1h2v2h-2zM5 5h2v2h-2z';
const HATCH = {
	allowed: '',
	denied: STRIPES,
	undecided: DOTS,
	rank1: '',
	rank2: STRIPES,
	rank3: DOTS,
	rank4: 'M0 2H8M0 6H8',
	rank5: 'M2 0V8M6 0V8',
	others: 'M0 0L8 8M0 8L8 0'
};

// Returns the step and the upper end of an axis from zero.
export function nice(most, show) {
	const unit = show === bytes ? 1024 ** Math.floor(Math.log(Math.max(1, most)) / Math.log(1024)) : 1;
	const bound = Math.max(most / unit, 1e-9) * 0.9999;
	const power = 10 ** Math.floor(Math.log10(bound / 3));
	const step = [1, 2, 2.5, 5, 10].map(digit => digit * power).find(one => one >= bound / 3);
	return { step: step * unit, top: Math.ceil(bound / step) * step * unit };
}

// Adds the patterns of all charts to the document, once.
function patterns() {
	if (document.getElementById('fills')) return;
	const all = Object.entries(HATCH).map(([kind, d]) =>
		svg(
			`pattern.fill.${kind}`,
			{ id: `fill-${kind}`, width: 8, height: 8, patternUnits: 'userSpaceOnUse' },
			svg('rect', { width: 8, height: 8 }),
			svg('path', { d })
		)
	);
	document.body.append(svg('svg', { id: 'fills', width: 0, height: 0, 'aria-hidden': 'true' }, svg('defs', all)));
}
const fill = kind => `url(#fill-${kind})`;

// Splits the points of a series where something is missing.
function stretches({ times, step }, values) {
	const found = [];
	times.forEach((ms, at) => {
		if (values[at] == null) return;
		const joins = at && values[at - 1] != null && ms - times[at - 1] < step * 1.6;
		if (joins) found.at(-1).push(at);
		else found.push([at]);
	});
	return found;
}

// Creates a chart. `pin(ms)` is called when a time is chosen.
export function chart({ label, show, stacked = false, span = 900000, pin, height = 190 }) {
	patterns();
	let [data, at, width, pinned] = [null, -1, 0, null];
	const picture = svg('svg', { 'aria-hidden': 'true', height });
	const tip = el('div.tip', { hidden: true, 'aria-hidden': 'true' });
	const plot = el(
		'div.plot',
		{ tabindex: 0, role: 'slider', 'aria-label': `${label}, by time`, 'aria-valuemin': 0, 'aria-valuenow': 0 },
		picture,
		tip
	);
	const legend = el('div.legend');
	const summary = el('p.sr');
	const element = el('figure.chart', { own: true }, el('figcaption', el('h3', label), legend), plot, summary);
	const base = height - BOTTOM;
	const inner = () => Math.max(10, width - LEFT - RIGHT);
	const x = ms => LEFT + ((ms - data.end + span) / span) * inner();
	const total = index => data.series.reduce((sum, one) => sum + (one.values[index] ?? 0), 0);
	const measured = index => data.series.some(one => one.values[index] != null);

	// Bounds the scale where a few peaks would flatten all else. The peak is then told in words.
	function bound() {
		const all = data.times
			.flatMap((ms, index) =>
				stacked ? [{ ms, value: measured(index) ? total(index) : null }] : data.series.map(one => ({ ms, value: one.values[index] }))
			)
			.filter(({ value }) => value != null);
		const sorted = all.map(({ value }) => value).sort((one, other) => one - other);
		const peak = all.find(({ value }) => value === sorted.at(-1));
		const usual = sorted[Math.floor(sorted.length * 0.97)] ?? 0;
		const isCut = !stacked && usual > 0 && peak.value > usual * 5;
		return { most: isCut ? usual * 2 : (peak?.value ?? 0), peak, isCut };
	}

	function axes({ step, top }, y) {
		const marks = [];
		for (let value = 0; value <= top * 1.0001; value += step) {
			marks.push(
				svg(value ? 'line.grid' : 'line.axis', { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
				svg('text.label', { x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end' }, show(value))
			);
		}
		const every = span > 1800000 ? 600000 : inner() < 420 ? 300000 : 180000;
		const shift = new Date(data.end).getTimezoneOffset() * 60000;
		for (let ms = Math.ceil((data.end - span - shift) / every) * every + shift; ms <= data.end; ms += every) {
			if (x(ms) < LEFT + 14 || x(ms) > width - 22) continue;
			marks.push(
				svg('line.axis', { x1: x(ms), x2: x(ms), y1: base, y2: base + 4 }),
				svg('text.label', { x: x(ms), y: height - 6, 'text-anchor': 'middle' }, minute(ms))
			);
		}
		return marks;
	}

	function shapes(y) {
		const below = data.times.map(() => 0);
		return data.series.map(one => {
			const runs = stretches(data, one.values).map(run => {
				// A single value has half a step on each side.
				const half = run.length > 1 ? 0 : ((data.step / span) * inner()) / 2;
				const points = run.flatMap(index => (half ? [-half, half] : [0]).map(side => [index, x(data.times[index]) + side]));
				const place =
					value =>
					([index, left]) =>
						`${left.toFixed(1)} ${y(value(index)).toFixed(1)}`;
				const upper = points.map(place(index => one.values[index] + (stacked ? below[index] : 0)));
				const lower = stacked ? points.toReversed().map(place(index => below[index])) : [];
				return `M${[...upper, ...lower].join('L')}${stacked ? 'Z' : ''}`;
			});
			one.values.forEach((value, index) => {
				below[index] += value ?? 0;
			});
			return svg(`path.${stacked ? 'area' : 'line'}.${one.kind}`, { d: runs.join(''), fill: stacked ? fill(one.kind) : 'none' });
		});
	}

	function note(ms, words, y) {
		const isRight = x(ms) > width / 2;
		return svg('text.label', { x: x(ms) + (isRight ? -8 : 8), y, 'text-anchor': isRight ? 'end' : 'start' }, words);
	}

	function draw() {
		if (!data || !width) return;
		const { most, peak, isCut } = bound();
		const scale = nice(most, show);
		const y = value => base - (Math.min(value, scale.top) / scale.top) * (base - TOP);
		const marks = axes(scale, y);
		if (isCut) {
			marks.push(
				svg('path.peak', { d: `M${x(peak.ms) - 4} ${TOP + 6}l4 -6l4 6z` }),
				note(peak.ms, `peak ${show(peak.value)} at ${clock(peak.ms)}`, TOP + 6)
			);
		}
		const upright = (kind, ms) => svg(`line.${kind}`, { x1: x(ms), x2: x(ms), y1: TOP, y2: base });
		if (pinned >= data.end - span && pinned <= data.end) marks.push(upright('pin', pinned), note(pinned, clock(pinned), TOP));
		if (at >= 0) marks.push(upright('cursor', data.times[at]));
		picture.setAttribute('width', width);
		patch(picture, svg('g', { key: 'shapes' }, shapes(y)), svg('g', { key: 'marks' }, marks));
		drawTip();
	}

	const swatch = one =>
		svg(
			'svg.swatch',
			{ viewBox: '0 0 16 10', 'aria-hidden': 'true' },
			stacked
				? svg(`rect.area.${one.kind}`, { width: 16, height: 10, rx: 2, fill: fill(one.kind) })
				: svg(`path.line.${one.kind}`, { d: 'M0 5H16' })
		);

	function drawTip() {
		tip.hidden = at < 0;
		if (at < 0) return;
		patch(
			tip,
			el('p.soft', clock(data.times[at])),
			data.series.toReversed().map(one => el('p', swatch(one), one.name, el('b', show(one.values[at])))),
			stacked && data.series.length > 1 && measured(at) && el('p', 'together', el('b', show(total(at))))
		);
		const place = x(data.times[at]);
		tip.style.left = `${place > width / 2 ? place - tip.offsetWidth - 12 : place + 12}px`;
	}

	const words = index =>
		data.series
			.toReversed()
			.map(one => `${one.name} ${show(one.values[index])}`)
			.join(', ');

	function move(to) {
		at = Math.max(-1, Math.min(data.times.length - 1, to));
		const index = at < 0 ? data.times.length - 1 : at;
		plot.setAttribute('aria-valuemax', Math.max(0, data.times.length - 1));
		plot.setAttribute('aria-valuenow', Math.max(0, index));
		plot.setAttribute('aria-valuetext', index < 0 ? 'nothing measured' : `${clock(data.times[index])}: ${words(index)}`);
		draw();
	}
	function nearest(event) {
		const ms = data.end - span + ((event.clientX - plot.getBoundingClientRect().left - LEFT) / inner()) * span;
		const away = data.times.map(time => Math.abs(time - ms));
		const best = away.indexOf(Math.min(...away));
		return away[best] < data.step * 1.5 ? best : -1;
	}
	plot.addEventListener('pointermove', event => data && move(nearest(event)));
	for (const type of ['pointerleave', 'blur']) plot.addEventListener(type, () => data && move(-1));
	plot.addEventListener('click', () => at >= 0 && pin?.(data.times[at]));
	plot.addEventListener('keydown', event => {
		if (!data?.times.length || (event.key === 'Escape' && at < 0)) return;
		const last = data.times.length - 1;
		const now = at < 0 ? last : at;
		const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - 12, PageUp: now + 12, Home: 0, End: last }[event.key];
		if (event.key === 'Enter') pin?.(data.times[now]);
		else if (event.key === 'Escape') move(-1);
		else if (to != null) move(Math.max(0, to));
		else return;
		event.stopPropagation();
		event.preventDefault();
	});
	new ResizeObserver(([{ contentRect }]) => {
		if (Math.floor(contentRect.width) === width) return;
		width = Math.floor(contentRect.width);
		draw();
	}).observe(plot);

	return {
		element,
		// Shows values by time: `times` in ms with `step` between two, and series from the bottom up, each with `key`, `name`,
		// `kind` (its look) and `values` (`null`: not measured).
		show(next) {
			const followed = data?.times[at];
			data = { end: next.times.at(-1) ?? Date.now(), ...next };
			const last = data.times.length - 1;
			patch(
				legend,
				data.series
					.toReversed()
					.map(one =>
						el(
							'span',
							{ key: one.key },
							swatch(one),
							' ',
							one.href ? el('a', { href: one.href }, one.name) : one.name,
							' ',
							el('b', show(one.values[last]))
						)
					)
			);
			summary.textContent =
				last < 0
					? 'Nothing has been measured yet.'
					: `From ${clock(data.times[0])} to ${clock(data.times[last])}. Latest: ${words(last)}. Highest: ${show(bound().peak?.value)}.`;
			move(followed == null ? -1 : data.times.indexOf(followed));
		},
		pin(ms) {
			pinned = ms;
			draw();
		}
	};
}

// Draws a few values as a line; a figure beside it tells the latest.
export function trace(values, kind = '') {
	const most = Math.max(1e-9, ...values);
	const points = values.map((value, at) =>
		value == null ? '' : `${values[at - 1] == null ? 'M' : 'L'}${(at / Math.max(1, values.length - 1)) * 100} ${23 - (value / most) * 21}`
	);
	return svg(
		'svg',
		{ class: `trace ${kind}`, viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
		svg('path', { d: points.join('') })
	);
}
