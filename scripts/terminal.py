#!/usr/bin/env python3
"""Records docs/terminal.svg: what `tollgate demo`, `ask`, `explain` and `top` print, as one animated picture.

    scripts/terminal.py target/quick/tollgate docs/terminal.svg

Runs the commands in a pseudo-terminal and draws their output with its colors. Nothing of the output is written here. The
demo takes the ports 8080 and 8081, so that commands look as they do at home. Needs Python 3.9 and nothing else.
"""

import html
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import fcntl

COLUMNS, ROWS = 118, 30
CHAR, LINE, SIZE = 7.9, 17.5, 13.1
PAD, BAR = 16, 34
WIDTH, HEIGHT = round(COLUMNS * CHAR) + 2 * PAD, round(ROWS * LINE) + BAR + 2 * PAD

BACK, FORE, SOFT = '#14181d', '#d8dee6', '#8b96a3'
GREEN, RED = '#6fd08c', '#ff8078'
COLORS = {30: SOFT, 31: RED, 32: GREEN, 33: '#e8c268', 34: '#7fb0ff', 35: '#c9a0f0', 36: '#6fd0d0', 37: FORE, 90: SOFT,
          91: RED, 92: GREEN, 93: '#e8c268', 94: '#7fb0ff', 95: '#c9a0f0', 96: '#6fd0d0', 97: '#ffffff'}

# Seconds that a character takes to type, and that pass before the output.
TYPED, ANSWER = 0.025, 0.2
# Seconds that the demo has been running before the other commands, so that the most denied keys are known.
TRAFFIC = float(os.environ.get('TRAFFIC', '45'))


def start(command, environment):
    """Starts a shell command in a pseudo-terminal. Returns the process and the terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(['/bin/sh', '-c', 'exec ' + command], stdin=slave, stdout=slave, stderr=slave,
                               env=environment, start_new_session=True)
    os.close(slave)
    return process, master


def read(master, until, timeout):
    """Reads a terminal until `until(text)` or its end."""
    text, end = b'', time.monotonic() + timeout
    while not until(text.decode(errors='ignore')):
        if time.monotonic() > end:
            raise SystemExit(f'no answer within {timeout} s:\n{text.decode(errors="replace")}')
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            more = os.read(master, 65536)
        except OSError:  # The other end is closed.
            break
        if not more:
            break
        text += more
    return text.decode(errors='replace')


def output(command, environment):
    """Returns what a command prints on a terminal."""
    process, master = start(command, environment)
    text = read(master, lambda _: False, 20)
    process.wait()
    os.close(master)
    return text


def lines(text):
    """Returns the lines of an output, each a list of (style, text), wrapped as a terminal does."""
    found, style = [], ''
    text = re.sub(r'\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\x1b[()][A-Z0-9]|\x1b[=>78]', '', text)
    for line in text.replace('\r', '').rstrip('\n').split('\n'):
        runs = []
        for part in re.split(r'(\x1b\[[0-9;]*m)', line):
            code = re.fullmatch(r'\x1b\[([0-9;]*)m', part)
            if code:
                style = restyled(style, code[1])
            elif part:
                runs.append((style, part))
        if not any(style for style, _ in runs):
            runs = colored(runs)
        found.extend(wrapped(runs))
    return found


def restyled(style, code):
    for number in (int(part or 0) for part in code.split(';')):
        if number == 0:
            style = ''
        elif number == 1:
            style += ' font-weight="600"' if 'weight' not in style else ''
        elif number == 2:
            style = f' fill="{SOFT}"'
        elif number in COLORS:
            style = re.sub(r' fill="[^"]*"', '', style) + f' fill="{COLORS[number]}"'
    return style


def colored(runs):
    """Colors the answers of a command that prints none."""
    text = ''.join(part for _, part in runs)
    found = []
    for part in re.split(r'(^passed\b|\bLIMITED\b|https?://\S+)', text):
        style = {'passed': f' fill="{GREEN}" font-weight="600"', 'LIMITED': f' fill="{RED}" font-weight="600"'}.get(part, '')
        style = ' fill="#7fb0ff"' if part.startswith('http') else style
        if part:
            found.append((style, part))
    return found


def wrapped(runs):
    rows, column = [[]], 0
    for style, text in runs:
        while text:
            if column == COLUMNS:
                rows.append([])
                column = 0
            piece = text[:COLUMNS - column]
            rows[-1].append((style, piece))
            column += len(piece)
            text = text[len(piece):]
    return rows


class Recording:
    """Screens, each with lines that appear at some time."""

    def __init__(self):
        self.now, self.screens = 0.0, []

    def screen(self, title):
        self.screens.append({'title': title, 'begin': self.now, 'lines': [], 'scrolls': []})

    def line(self, runs, typed=None):
        screen = self.screens[-1]
        screen['lines'].append((self.now, runs, typed))
        if len(screen['lines']) > ROWS:
            screen['scrolls'].append((self.now, len(screen['lines']) - ROWS))

    def command(self, text, rows, fast=False):
        """Types a command, and shows its output."""
        took = 0.15 if fast else len(text) * TYPED
        for index, row in enumerate(wrapped([('', text)])):
            prompt = [(f' fill="{GREEN}"', '$ ')] if index == 0 else []
            self.line(prompt + row, None if fast else took)
        self.now += took + (0.15 if fast else ANSWER)
        for row in rows:
            self.line(row)

    def wait(self, seconds):
        self.now += seconds

    def svg(self):
        total, rules, body = self.now, [], []

        def share(at):
            return f'{100 * min(at, total) / total:.2f}%'

        def name(frames):
            rules.append(frames)
            return f'k{len(rules)}'

        for index, screen in enumerate(self.screens):
            end = self.screens[index + 1]['begin'] if index + 1 < len(self.screens) else total
            shown = name(f'0%{{visibility:hidden}}{share(screen["begin"])}{{visibility:visible}}'
                         + (f'{share(end)}{{visibility:hidden}}' if end < total else '')) \
                if index else name(f'0%{{visibility:visible}}{share(end)}{{visibility:hidden}}')
            body.append(f'<g class="s{index}" style="animation-name:{shown}">')
            body.append(f'<text class="t" x="{WIDTH / 2:g}" y="22">{html.escape(screen["title"])}</text>')
            body.append(f'<svg x="0" y="{BAR}" width="{WIDTH}" height="{HEIGHT - BAR}">')
            scroll = ''
            if screen['scrolls']:
                frames = '0%{transform:none}' + ''.join(
                    f'{share(at)}{{transform:translateY(-{rows * LINE}px)}}' for at, rows in screen['scrolls'])
                scroll = f' style="animation-name:{name(frames)}"'
            body.append(f'<g{scroll}>')
            for number, (at, runs, typed) in enumerate(screen['lines']):
                body.append(self.drawn(number, at, runs, typed, name, share))
            body.append('</g></svg></g>')
        keyframes = ''.join(f'@keyframes k{number}{{{frames}}}' for number, frames in enumerate(rules, 1))
        # Only elements with a name of keyframes are animated.
        style = (f'g,text,rect{{animation:{total:.2f}s step-end infinite}}'
                 f'text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;'
                 f'fill:{FORE};white-space:pre}}'
                 f'.t{{fill:{SOFT};font-size:13px;text-anchor:middle}}.c{{fill:{BACK}}}{keyframes}'
                 # Who wants no motion sees the screen with the answers.
                 '@media(prefers-reduced-motion:reduce){g,text,rect{animation:none!important}.s0,.s2,.c{display:none}}')
        dots = ''.join(f'<circle cx="{x}" cy="17" r="5.5" fill="{color}"/>'
                       for x, color in ((20, '#e0645c'), (39, '#dbb04f'), (58, '#5fb36b')))
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                f'height="{HEIGHT}" role="img" aria-label="A terminal: tollgate demo, ask, explain and top">\n'
                f'<style>{style}</style>\n<rect width="{WIDTH}" height="{HEIGHT}" rx="9" fill="{BACK}"/>'
                f'<rect width="{WIDTH}" height="{BAR}" rx="9" fill="#222830"/>{dots}\n' + '\n'.join(body) + '\n</svg>\n')

    def drawn(self, number, at, runs, typed, name, share):
        y = PAD + number * LINE + SIZE
        parts, column = [], 0
        for style, text in runs:
            if text.strip():
                lead = len(text) - len(text.lstrip(' '))
                inner = text.strip(' ')
                x, length = PAD + (column + lead) * CHAR, len(inner) * CHAR
                # As an attribute, a color would yield to the style of all texts.
                style = re.sub(r' fill="([^"]*)"', r' style="fill:\1"', style)
                parts.append(f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}"{style}>{html.escape(inner)}</text>')
            column += len(text)
        shown = f'<g style="animation-name:{name(f"0%{{visibility:hidden}}{share(at)}{{visibility:inherit}}")}">'
        cover = ''
        if typed:
            begin, count = 2, column - 2
            frames = f'0%,{share(at)}{{transform:none;animation-timing-function:steps({count})}}' \
                     f'{share(at + typed)},100%{{transform:translateX({count * CHAR:.1f}px)}}'
            cover = (f'<rect class="c" x="{PAD + begin * CHAR:.1f}" y="{y - SIZE:.1f}" width="{WIDTH}" height="{LINE}" '
                     f'style="animation-name:{name(frames)}"/>')
        return shown + ''.join(parts) + cover + '</g>'


def main():
    binary, picture = os.path.abspath(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(binary, os.path.join(folder, 'tollgate'))
        environment = {'PATH': folder + ':/usr/bin:/bin', 'TERM': 'xterm-256color', 'LANG': 'C.UTF-8', 'HOME': folder}
        demo, master = start('tollgate demo', environment)
        try:
            greeting = read(master, lambda text: 'tollgate bans' in text or demo.poll() is not None, 30)
            if demo.poll() is not None:
                raise SystemExit(greeting)
            commands = [line.strip() for line in greeting.replace('\r', '').split('\n')]
            export = next(line for line in commands if line.startswith('export '))
            ask, explain, top = (next(line for line in commands if line.startswith(f'tollgate {name} '))
                                 for name in ('ask', 'explain', 'top'))
            top += ' --once -n 10'
            environment['ADMIN_TOKEN'] = export.split('=')[1]
            time.sleep(TRAFFIC)
            recording = Recording()
            recording.screen('tollgate demo')
            recording.wait(0.2)
            recording.command('tollgate demo', lines(greeting))
            recording.wait(1.8)
            recording.screen('another terminal')
            recording.wait(0.1)
            recording.command(export, [], fast=True)
            for number in range(6):
                recording.command(ask, lines(output(ask, environment)), fast=number > 0)
                recording.wait(0.2 if number < 5 else 1.8)
            recording.command(explain, lines(output(explain, environment)))
            recording.wait(5)
            recording.screen('another terminal')
            recording.command(top, lines(output(top, environment)))
            recording.wait(6)
        finally:
            if demo.poll() is None:
                demo.send_signal(signal.SIGINT)
            demo.wait()
    drawn = recording.svg()
    with open(picture, 'w', encoding='utf-8') as file:
        file.write(drawn)
    print(f'{picture}: {recording.now:.1f} s, {len(drawn) / 1000:.0f} KB')


main()
