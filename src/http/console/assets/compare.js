// Comparisons of rules with those in force: rules that are pasted, and the candidates of the service.

import { copyable, el, empty, facts, field, grid, patch, verbatim } from './parts.js';
import { ask, feed } from './service.js';
import { covered, state } from './views.js';
import { quoted } from './entries.js';
import { clock, count, exact, moment, portion, share } from './words.js';

const HOW = `CANDIDATE_RULES=next            # folder or file with the candidate rules
CANDIDATE_SAMPLE=0.1            # share of keys to compare`;

// Shows who would be denied, and who no longer, with examples.
function differences(report) {
	if (!report.rules.length) return el('p.soft', 'No request has been decided differently yet.');
	const cell = (requests, keys) => [
		el(requests ? 'b' : 'span.soft', count(requests)),
		keys != null && el('span.under', `${exact(keys)} keys`)
	];
	const examples = (all = []) =>
		el(
			'ul.plain',
			all.toReversed().map(({ at, asked }) => el('li', el('span.soft', clock(Date.parse(at))), ' ', el('code', asked)))
		);
	const more = `${report.more_rules ? `; ${exact(report.more_rules)} more limits are not shown` : ''}${report.more_keys ? '; numbers of keys are lower bounds' : ''}`;
	return grid(
		`Different decisions, the largest difference first${more}`,
		['Limit', '#Newly denied', '#No longer denied', 'Latest examples'],
		report.rules.map(one => [
			[one.rule, el('span.under', one.domain)],
			cell(one.newly_denied, one.keys_newly_denied),
			cell(one.newly_allowed, one.keys_newly_allowed),
			examples(one.examples)
		])
	);
}

const changes = list => (list?.length ? verbatim('Changes of the rules', list.join('\n')) : el('p.soft', 'The rules are the same.'));
const totals = (of, report) => [
	['Newly denied', `${exact(report.newly_denied)} (${portion(report.newly_denied, of)})`, report.newly_denied ? 'denied' : null],
	['No longer denied', `${exact(report.newly_allowed)} (${portion(report.newly_allowed, of)})`]
];

// Compares a rules file that is pasted.
export function pasted(place) {
	const text = el('textarea', {
		rows: 14,
		required: true,
		spellcheck: 'false',
		input: () => {
			turn += 1;
			patch(result);
		},
		placeholder: 'domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 3}'
	});
	const result = el('div', { 'aria-live': 'polite', own: true });
	let turn = 0;
	async function compare(event) {
		event.preventDefault();
		const mine = (turn += 1);
		patch(result, el('p.soft', 'Replaying the recorded requests …'));
		let shown;
		try {
			const told = await ask('/what-if/rules', { method: 'POST', text: text.value });
			shown = !told.ok
				? [el('h2', 'These rules have mistakes'), verbatim('Mistakes', told.mistakes ?? 'They cannot be read.')]
				: [
						el('h2', 'What changes'),
						changes(told.changes),
						told.requests == null
							? el('p.soft', 'No requests are recorded that show whom it changes: set WHAT_IF_REQUESTS.')
							: [
									facts([['Requests replayed', exact(told.requests)], ...totals(told.requests, told)]),
									el('h2', 'Who it changes'),
									differences(told)
								],
						told.patch && [el('h2', 'As a patch'), copyable(told.patch, 'the patch')],
						el('p.soft.small', covered(told.instances))
					];
		} catch (error) {
			shown = el('p.bad', { role: 'alert' }, error.message);
		}
		if (mine === turn) patch(result, shown);
	}
	patch(
		place,
		el(
			'form',
			{ submit: compare },
			field('A rules file', text, 'It is compared with the rules in force on the recorded requests. Nothing is put in force.'),
			el('button.primary', 'Compare')
		),
		result
	);
	return () => {
		turn += 1;
	};
}

function report(told) {
	const refused =
		told.refused &&
		el(
			'div',
			{ role: 'alert', key: 'refused' },
			el('p.bad', '▲ The current files are invalid; the previous candidates are still compared:'),
			verbatim('Mistakes', told.refused)
		);
	const files = el(
		'p',
		'Files: ',
		told.files.map((file, at) => [at ? ', ' : '', el('code', file)])
	);
	if (!told.version) return [files, refused, el('p.soft', 'Nothing is compared yet.')];
	const promote = `tollgate promote ${told.files.map(file => `--candidate-rules ${quoted(file)}`).join(' ')} --expect ${quoted(told.version)}`;
	return [
		facts([['Requests compared', exact(told.compared)], ...totals(told.compared, told), ['Share of keys', share(told.sample_now)]]),
		refused,
		differences(told),
		el('h2', `Changes: ${told.changed}`),
		changes(told.changes),
		files,
		el('h2', 'Put them in force'),
		el(
			'p',
			'The service cannot write its own rules. Run this command on the machine with the rules files. It changes nothing if the candidates have changed in the meantime:'
		),
		copyable(promote, 'the command'),
		el(
			'p.soft.small',
			covered(told.instances),
			`compared since ${moment(told.since)}; version `,
			el('code', told.version),
			told.sample_now < told.sample && `; CANDIDATE_SAMPLE is ${share(told.sample)}, but memory for the counters is short`
		)
	];
}

// Shows the report on the candidates of the service.
export function candidates(place) {
	const list = feed(
		5000,
		() => ask('/candidates'),
		() =>
			patch(
				place,
				list.error?.status === 404
					? empty(
							list.error.message,
							'Candidate rules are evaluated on real requests but deny none. To compare some, start the service with these settings:',
							copyable(HOW, 'the settings')
						)
					: [state(list), list.answer && report(list.answer)]
			)
	);
	return list.end;
}
