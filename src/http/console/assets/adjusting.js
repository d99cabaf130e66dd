// Adjustments: their words, and the sheets that begin and end them. Nothing here takes effect without a second look.

import { announce, button, el, field, patch } from './parts.js';
import { ask, mayAdjust, query, seen } from './service.js';
import { completed } from './complete.js';
import { isExact } from './entries.js';
import { descriptorsOf, find, parsed, targetText } from './find.js';
import { confirm, sheet } from './sheet.js';
import { count, duration, entriesText, exact, moment, plural, rate, share } from './words.js';

const NAME = 'tollgate-who';
// Event of the window: an adjustment has begun or ended.
export const ADJUSTED = 'tollgate-adjusted';

// What each effect is called and does, how long it lasts by default, and usual reasons.
export const VERBS = {
	scale: { name: 'Scale', does: 'Multiply limits, such as to a half.', lasts: '30m', reasons: ['incident', 'load test'] },
	number: {
		name: 'Another number',
		does: 'Replace the number of one limit or key.',
		lasts: '1h',
		reasons: ['customer asked', 'trying a number']
	},
	pass: { name: 'Let pass', does: 'Allow all requests of a key or limit.', lasts: '1h', reasons: ['customer asked', 'incident'] },
	block: { name: 'Block', does: 'Deny all requests of a key or limit.', lasts: '30m', reasons: ['abuse', 'incident'] },
	shadow: { name: 'Shadow', does: 'Count, but deny nothing.', lasts: '30m', reasons: ['incident', 'wrong limit'] },
	enforce: { name: 'Enforce', does: 'Deny even where the rules only watch.', lasts: '30m', reasons: ['abuse', 'incident'] }
};
const SHARES = ['10%', '25%', '50%', '200%'];
const TIMES = ['15m', '30m', '1h', '4h', '1d'];
// Requests a second that are much to deny or to open at once.
const MUCH = 10;

// Most descriptors that a sentence names.
const NAMED = 3;

// Says in which hours an adjustment takes effect, if not all day.
const daily = ({ hours, time_zone: zone }) => (hours ? `, daily ${hours} ${zone ?? 'UTC'}` : '');

// Says what an adjustment does, without its end.
export function sentence(one) {
	const all = one.everything || !one.domain;
	const does =
		{
			scale: `at ${one.share?.replace('%', ' %')}`,
			number: `at ${exact(one.number)} instead of the file's number`,
			pass: 'let pass',
			block: 'blocked',
			shadow: `den${all ? 'y' : 'ies'} nothing (shadow)`,
			enforce: 'enforced'
		}[one.effect] ?? one.effect;
	return `${all ? 'all limits' : targetText(one, NAMED)} ${does}${daily(one)}`;
}

// Says when an adjustment that is outside its hours takes effect again.
export const paused = one => (one.paused_until ? `outside its hours, until ${moment(one.paused_until)}` : '');

// Says where an adjustment holds, if not at all instances.
export function onlyHere(one) {
	if (!one.only_here) return '';
	const { instance, fleet, stays } = one.only_here;
	const later = stays ? `not published, because ${stays}` : fleet ? 'published to all when the store is back' : 'until that restarts';
	return `at instance ${instance} alone, ${later}`;
}

// The choice to publish a change that holds at one instance, while the store is down.
function publishing() {
	const isDown = seen.tick?.store.up < 1;
	const choice = el('input', { type: 'checkbox' });
	return {
		element:
			isDown &&
			el(
				'div',
				el('p.warn', '▲ The store is down: this holds at the instance that answers, alone, until that restarts.'),
				el('label.check', choice, ' Publish it to all instances when the store is back')
			),
		get query() {
			return isDown && choice.checked ? { fleet: 'true' } : {};
		}
	};
}

// A choice among a few values, or another one that is typed.
function chips(label, options, chosen, change, other) {
	const own =
		other &&
		el('input.short', {
			type: 'text',
			'aria-label': `${label}: other`,
			placeholder: other,
			autocomplete: 'off',
			input: () => {
				for (const one of radios) one.checked = false;
				change();
			}
		});
	if (own && !options.some(([value]) => value === chosen)) own.value = chosen;
	const radios = options.map(([value]) =>
		el('input', {
			type: 'radio',
			name: label,
			value,
			checked: value === chosen,
			change: () => {
				if (own) own.value = '';
				change();
			}
		})
	);
	const element = el(
		'fieldset.chips',
		el('legend', label),
		radios.map((radio, at) => el('label.chip', radio, el('span', options[at][1]))),
		own
	);
	return {
		element,
		get value() {
			return radios.find(one => one.checked)?.value ?? own?.value.trim();
		}
	};
}
const same = values => values.map(value => [value, value.replace('%', ' %')]);

// The fields that say who acts and why. A token with a name says who.
function signature(reasons, why = '') {
	const { name } = seen.tick ?? {};
	const who = el('input', { type: 'text', maxlength: 100, value: localStorage.getItem(NAME) ?? '', autocomplete: 'name' });
	const reason = el('input', { type: 'text', maxlength: 500, autocomplete: 'off', value: why });
	const hints = reasons.map(text =>
		button(
			text,
			() => {
				reason.value = text;
				reason.focus();
			},
			'quiet small'
		)
	);
	return {
		element: el(
			'div',
			field('Why', reason),
			el('div.hints', hints),
			name ? el('p.soft', 'By ', el('b', name), ', the name of your token.') : field('Who', who)
		),
		focus: () => reason.focus(),
		get given() {
			return { who: name ?? who.value.trim(), why: reason.value.trim() };
		},
		// Returns both, or says what is missing.
		read() {
			const given = this.given;
			const missing = !given.why ? reason : !given.who ? who : null;
			missing?.focus();
			if (missing)
				throw new Error(
					missing === reason ? 'Say why: the history and the log keep it.' : 'Say who you are: the history and the log keep it.'
				);
			if (!name) localStorage.setItem(NAME, given.who);
			return given;
		}
	};
}

const failure = place => error => patch(place, el('p.bad', error.message));

// A form whose mistakes and failures are shown in it.
function formOf(submit, cancel, ...parts) {
	const trouble = el('div', { role: 'alert', own: true });
	const begin = el('button.primary');
	const send = event => {
		event.preventDefault();
		patch(trouble);
		submit().catch(failure(trouble));
	};
	return {
		begin,
		form: el('form', { own: true, novalidate: true, submit: send }, parts, trouble, el('div.actions.end', button('Cancel', cancel), begin))
	};
}

function previewWords(told) {
	const reached = [
		plural(told.limits, 'limit'),
		told.keys != null && plural(told.keys, 'key'),
		told.requests_per_s != null && `${rate(told.requests_per_s)} of requests`
	];
	const of = keys => (keys == null ? '' : `, of ${plural(keys, 'key')}`);
	return {
		scope: `Reaches ${reached.filter(Boolean).join(', ')}.`,
		more:
			told.denied_per_s > 0
				? `Would deny ${count(told.denied_per_s)} requests a second more than now${of(told.keys_denied)}.`
				: told.allowed_per_s > 0
					? `Would let ${count(told.allowed_per_s)} requests a second pass that are denied now${of(told.keys_allowed)}.`
					: told.requests_per_s == null
						? 'No recorded request shows its effect.'
						: 'Would change no answer of the recorded requests.'
	};
}

// Opens the sheet of a verb, with these values filled in.
export function adjust({ effect, target = null, share: part = '50%', number = null, lasts, why }) {
	if (!mayAdjust()) return announce('This token may only read.');
	const { name, does, lasts: usual, reasons } = VERBS[effect];
	return sheet(name, (body, done) => {
		let [chosen, kind, preview, timer, turn] = [target, effect, null, 0, 0];
		const change = () => {
			kind = which?.value ?? effect;
			preview = null;
			draw();
			clearTimeout(timer);
			timer = setTimeout(look, 250);
		};
		const offers = async text => (await find(text || 'every')).filter(one => one.exact !== false && mayAdjust(one.target.domain ?? null));
		const [picker, list] = completed(
			el('input', {
				type: 'text',
				autocomplete: 'off',
				spellcheck: 'false',
				placeholder: 'a limit, a domain, shop user=ann, shop user~acme_* or everything',
				value: target && targetText(target),
				input: () => {
					chosen = parsed(picker.value);
					change();
				}
			}),
			offers
		);
		const kinds = {
			scale: [
				['scale', 'a share'],
				['number', 'a number']
			],
			shadow: [
				['shadow', 'deny nothing'],
				['enforce', 'enforce']
			]
		};
		const pair = kinds[{ number: 'scale', enforce: 'shadow' }[effect] ?? effect];
		const which = pair && chips('Effect', pair, effect, change);
		const amount = chips('Share of what the file says', same(SHARES), part, change, 'such as 75%');
		const numberInput = el('input.short', { type: 'number', min: 1, max: Number.MAX_SAFE_INTEGER, value: number, input: change });
		const numberField = field('Number', numberInput);
		const time = chips('For', same(TIMES), lasts ?? usual, change, 'such as 90m');
		const hours = el('input.short', { type: 'text', placeholder: 'all day, or 22:00-06:00', autocomplete: 'off', input: change });
		const zone = el('input.short', { type: 'text', value: Intl.DateTimeFormat().resolvedOptions().timeZone, autocomplete: 'off', input: change });
		const zoneField = field('Time zone', zone);
		const signed = signature(reasons, why);
		const published = publishing();
		const shown = el('div.preview', { 'aria-live': 'polite', own: true });
		const { form, begin } = formOf(
			submit,
			done,
			field('What', picker),
			list,
			which?.element,
			amount.element,
			numberField,
			time.element,
			el('div.fields', field('Daily hours', hours), zoneField),
			signed.element,
			published.element,
			shown
		);
		const step = el('div', { own: true, hidden: true });

		const isWide = () => !chosen.rule && !descriptorsOf(chosen).length;
		// Whether it is for more than one key.
		const isForMany = () => chosen.rule || descriptorsOf(chosen).length > 1 || !descriptorsOf(chosen).every(isExact);
		function asked() {
			const wrong = (message, input) => {
				input?.focus();
				throw new Error(message);
			};
			if (!chosen) wrong('Choose what it is for: a limit, a domain, a key such as shop user=ann, or everything.', picker);
			if (kind === 'number' && isWide()) wrong('A number is for one limit or one key. Scale changes many.', picker);
			if (kind === 'number' && !numberInput.value) wrong('Write the number.', numberInput);
			if (!time.value || (kind === 'scale' && !amount.value)) wrong('Choose how much, and for how long.');
			return {
				...chosen,
				effect: kind,
				for: time.value,
				...(hours.value.trim() && { hours: hours.value.trim(), time_zone: zone.value.trim() }),
				...(kind === 'scale' && { share: amount.value }),
				...(kind === 'number' && { number: Number(numberInput.value) })
			};
		}
		async function look() {
			clearTimeout(timer);
			const mine = (turn += 1);
			let told;
			try {
				const wanted = asked();
				const { who, why: reason } = signed.given;
				told = await ask('/adjustments/preview', { method: 'POST', body: { ...wanted, who: who || 'preview', why: reason || 'preview' } });
			} catch (error) {
				told = { failed: error.status == null ? 'fill in the sheet first' : error.message };
			}
			if (mine !== turn) return;
			preview = told;
			draw();
		}
		function draw() {
			amount.element.hidden = kind !== 'scale';
			numberField.hidden = kind !== 'number';
			zoneField.hidden = !hours.value.trim();
			begin.textContent = `${VERBS[kind].name}${asksAgain() ? ' …' : ''}`;
			begin.className = kind === 'block' ? 'danger' : 'primary';
			if (!preview)
				return patch(shown, el('p.soft', chosen ? 'Working out what it would do …' : 'A preview appears here before anything changes.'));
			if (preview.failed) return patch(shown, el('p.soft', `No preview: ${preview.failed}.`));
			const { scope, more } = previewWords(preview);
			patch(
				shown,
				el('p.big', more),
				el('p', scope),
				preview.examples?.length > 0 &&
					el(
						'p.soft',
						'Such as ',
						preview.examples.slice(0, 4).map((one, at) => [at ? ', ' : '', el('code', one)])
					),
				preview.seconds > 0 &&
					el('p.soft.small', `From ${duration(preview.seconds * 1000)} of recorded requests of ${share(preview.sample)} of the keys${hours.value.trim() ? ', as if its hours were the whole day' : ''}.`)
			);
		}
		// Returns whether it blocks or opens much.
		function asksAgain() {
			if (!chosen || isWide() || (kind === 'block' && isForMany())) return true;
			const isMuch = Math.max(preview?.denied_per_s ?? 0, preview?.allowed_per_s ?? 0) >= MUCH;
			return isMuch || Boolean(isForMany() && (!preview || preview.failed));
		}
		async function send(wanted) {
			const begun = await ask(`/adjustments?${query(published.query)}`, { method: 'POST', body: wanted });
			done();
			const where = begun.only_here ? `, ${onlyHere(begun)}` : '';
			const when = begun.paused_until ? `Takes effect from ${moment(begun.paused_until)}, and ends` : 'In force until';
			announce(`${when} ${moment(begun.until)}: ${sentence(begun)}${where}. ${begun.note ?? ''}`);
			dispatchEvent(new Event(ADJUSTED));
		}
		async function submit() {
			const wanted = { ...asked(), ...signed.read() };
			if (!preview) await look();
			if (!asksAgain()) return send(wanted);
			const { scope, more } = preview.failed ? { scope: '', more: 'Its effect is not known.' } : previewWords(preview);
			const swap = asks => {
				form.hidden = asks;
				step.hidden = !asks;
			};
			swap(true);
			confirm(step, {
				says: `${sentence(wanted)}, for ${wanted.for}. ${scope} ${more}`,
				yes: `Yes, ${VERBS[kind].name.toLowerCase()}: ${targetText(chosen, NAMED)} for ${wanted.for}`,
				act: () => send(wanted),
				back: () => {
					swap(false);
					begin.focus();
				}
			});
		}
		const where = published.element ? 'It ends by itself.' : 'It takes effect on all instances within a second, and ends by itself.';
		patch(body, el('p.soft', does, ' ', where), form, step);
		draw();
		if (chosen) look();
		if (!chosen) picker.focus();
		else if (effect === 'number' && number == null) numberInput.focus();
		else signed.focus();
		return () => clearTimeout(timer);
	});
}

// Opens the sheet that ends an adjustment, with its own fields.
export function endAdjustment(one) {
	return sheet('End an adjustment', (body, done) => {
		const signed = signature(['no longer needed', 'it is over']);
		const published = publishing();
		async function submit() {
			const given = query({ ...signed.read(), ...published.query });
			const ended = await ask(`/adjustments/${encodeURIComponent(one.id)}?${given}`, { method: 'DELETE' });
			done();
			announce(`Ended: ${sentence(one)}${ended.only_here ? `, at instance ${ended.only_here.instance} alone` : ''}.`);
			dispatchEvent(new Event(ADJUSTED));
		}
		const { form, begin } = formOf(submit, done, signed.element, published.element);
		begin.textContent = 'End it now';
		patch(
			body,
			el('p.big', sentence(one)),
			el('p.soft', `By ${one.who}: “${one.why}”. It would end by itself at ${moment(one.until)}.`),
			form
		);
		signed.focus();
	});
}

// Opens the sheet that resets the counters of a key.
export function resetCounters({ domain, descriptor, banned_ms: banned }, after) {
	return sheet(banned ? 'Reset and lift the ban' : 'Reset', (body, done) =>
		confirm(body, {
			says: `All counters of ${domain} ${entriesText(descriptor)} start anew${banned ? `, and its ban of another ${duration(banned)} is lifted` : ''}.`,
			yes: banned ? 'Yes, reset it and lift the ban' : 'Yes, reset it',
			back: done,
			act: async () => {
				const pairs = [['domain', domain], ...descriptor.map(({ key, value }) => [key, value])];
				const counters = await ask(`/counters?${new URLSearchParams(pairs)}`, { method: 'DELETE' });
				done();
				announce(`Reset: ${counters.map(one => `${one.rule}, ${exact(one.remaining)} remaining`).join('; ')}`);
				after();
			}
		})
	);
}
