//! Tests of [`Connection`] by the frame.

use hyper::body::Bytes;
use proptest::prelude::*;

use super::connection::{Bounds, Connection, Event};
use super::frame::{self, HEAD, Reason, flag, kind, setting};
use super::hpack;
use super::stream::End;

const BOUNDS: Bounds = Bounds { streams: 3, keeps_trace: false };

/// A connection whose client has sent its SETTINGS, and whose output so far is taken.
fn begun() -> Connection<()> {
    let mut connection = Connection::new(BOUNDS);
    assert_eq!(take(&mut connection).len(), 2, "SETTINGS and WINDOW_UPDATE");
    assert_eq!(sent(&mut connection, &written(|out| frame::settings(out, &[]))), Vec::<String>::new());
    assert_eq!(take(&mut connection), ["SETTINGS ack"]);
    connection
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// Has the connection take these bytes, and returns its events.
fn sent(connection: &mut Connection<()>, mut bytes: &[u8]) -> Vec<String> {
    sent_from(connection, &mut bytes)
}

/// The same, leaving what is no whole frame.
fn sent_from(connection: &mut Connection<()>, input: &mut &[u8]) -> Vec<String> {
    let mut events = Vec::new();
    while let Some(event) = connection.next(input) {
        events.push(match event {
            Event::Opened { stream, head, ended } => format!("opened {stream} {:?} {ended}", head.to),
            Event::Data { stream, bytes, ended } => format!("data {stream} {} {ended}", bytes.len()),
            Event::Reset { call: () } => "reset".to_owned(),
        });
    }
    events
}

/// Takes the output, and returns its frames in words.
fn take(connection: &mut Connection<()>) -> Vec<String> {
    let output = std::mem::take(&mut connection.output);
    let mut rest = &output[..];
    let mut frames = Vec::new();
    while let Some(head) = frame::head(rest) {
        let payload = &rest[HEAD..HEAD + head.length];
        let number = |at: usize| frame::number(&payload[at..at + 4]).unwrap();
        frames.push(match head.kind {
            kind::DATA => format!("DATA {} {}{}", head.stream, head.length, end(head)),
            kind::HEADERS => format!("HEADERS {}{}", head.stream, end(head)),
            kind::RST_STREAM => format!("RST_STREAM {} {}", head.stream, number(0)),
            kind::SETTINGS if head.has(flag::ACK) => "SETTINGS ack".to_owned(),
            kind::SETTINGS => "SETTINGS".to_owned(),
            kind::PING if head.has(flag::ACK) => "PING ack".to_owned(),
            kind::PING => "PING".to_owned(),
            kind::GOAWAY => format!("GOAWAY {} {}", number(0), number(4)),
            kind::WINDOW_UPDATE => format!("WINDOW_UPDATE {} {}", head.stream, number(0)),
            other => panic!("a server sends no frame of type {other}"),
        });
        rest = &rest[HEAD + head.length..];
    }
    assert!(rest.is_empty(), "half a frame");
    frames
}

fn end(head: frame::Head) -> &'static str {
    if head.has(flag::END_STREAM) { " end" } else { "" }
}

fn a_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    written(|out| {
        frame::begin(out, payload.len(), (kind, flags), stream);
        out.extend_from_slice(payload);
    })
}

fn block() -> Vec<u8> {
    written(|out| {
        for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("te", "trailers")] {
            hpack::literal(out, name.as_bytes(), value.as_bytes());
        }
    })
}

fn open(stream: u32, flags: u8) -> Vec<u8> {
    a_frame(kind::HEADERS, flag::END_HEADERS | flags, stream, &block())
}

const OPENED: &str = r#"opened 1 Other("/a") false"#;

#[test]
fn a_call_comes_in_and_its_answer_goes_out_however_its_headers_are_cut() {
    let block = block();
    for cut in 0..block.len() {
        let mut connection = begun();
        let input = [
            a_frame(kind::HEADERS, 0, 1, &block[..cut]),
            a_frame(kind::CONTINUATION, 0, 1, &[]),
            a_frame(kind::CONTINUATION, flag::END_HEADERS, 1, &block[cut..]),
            a_frame(kind::DATA, flag::END_STREAM | flag::PADDED, 1, b"\x02body.."),
        ];
        assert_eq!(sent(&mut connection, &input.concat()), [OPENED, "data 1 4 true"]);
        connection.answer(1, b"\x88", b"answer", b"\x00\x01a\x01b");
        assert_eq!(take(&mut connection), ["HEADERS 1", "DATA 1 6", "HEADERS 1 end"]);
        assert!(connection.streams.is_empty());
    }
}

#[test]
fn what_the_window_does_not_let_pass_waits_for_it() {
    let mut connection = begun();
    let window = |bytes| written(|out| frame::settings(out, &[(setting::INITIAL_WINDOW_SIZE, bytes)]));
    sent(&mut connection, &[window(0), open(1, flag::END_STREAM), open(3, flag::END_STREAM)].concat());
    take(&mut connection);
    connection.answer(1, b"\x88", b"answer", b"");
    connection.send_headers(3, b"\x88", false);
    connection.send_data(3, Bytes::from_static(b"other"));
    connection.send_end(3, End::Data);
    assert_eq!(take(&mut connection), ["HEADERS 1", "HEADERS 3"]);
    assert_eq!((connection.unsent, connection.unsent_of(1)), (11, 6));
    sent(&mut connection, &written(|out| frame::window_update(out, 3, 2)));
    assert_eq!(take(&mut connection), ["DATA 3 2"]);
    sent(&mut connection, &window(1));
    let mut frames = take(&mut connection);
    frames[1..].sort_unstable();
    assert_eq!(frames, ["SETTINGS ack", "DATA 1 1", "DATA 3 1"]);
    sent(&mut connection, &written(|out| frame::window_update(out, 1, 5)));
    assert_eq!(take(&mut connection), ["DATA 1 5", "HEADERS 1 end"]);
    sent(&mut connection, &window(100));
    assert_eq!(take(&mut connection), ["SETTINGS ack", "DATA 3 2", "DATA 3 0 end"]);
    assert_eq!((connection.unsent, connection.streams.len()), (0, 0));
}

#[test]
fn the_window_of_the_connection_is_shared_and_each_stream_has_its_turn() {
    let mut connection = begun();
    let wide = written(|out| frame::settings(out, &[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]));
    sent(&mut connection, &[wide, open(1, flag::END_STREAM), open(3, flag::END_STREAM)].concat());
    take(&mut connection);
    for stream in [1, 3] {
        connection.send_data(stream, Bytes::from(vec![0; 50_000]));
    }
    let frames = take(&mut connection);
    assert_eq!(frames[..3], ["DATA 1 16384", "DATA 1 16384", "DATA 1 16384"]);
    assert_eq!(frames[3..], ["DATA 1 848", "DATA 3 15535"]);
    connection.send_data(1, Bytes::from(vec![0; 20_000]));
    sent(&mut connection, &written(|out| frame::window_update(out, 0, 40_000)));
    assert_eq!(take(&mut connection), ["DATA 3 16384", "DATA 1 16384", "DATA 3 7232"]);
}

#[test]
fn windows_that_open_and_close_make_no_list_grow() {
    let mut connection = begun();
    let window = |bytes| written(|out| frame::settings(out, &[(setting::INITIAL_WINDOW_SIZE, bytes)]));
    // Uses up the window of the connection.
    sent(&mut connection, &[window(1 << 20), open(1, flag::END_STREAM)].concat());
    connection.send_data(1, Bytes::from(vec![0; 70_000]));
    for turn in 0..1_000 {
        sent(&mut connection, &[window(0), window(1 << 20)].concat());
        let stream = 2 * turn + 3;
        sent(&mut connection, &open(stream, flag::END_STREAM));
        connection.send_data(stream, Bytes::from_static(b"held back"));
        sent(&mut connection, &a_frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        connection.output.clear();
    }
    assert!(connection.ready.len() < 100, "{}", connection.ready.len());
    assert_eq!(connection.unsent, 70_000 - 65_535);
}

#[test]
fn an_answer_that_comes_before_its_request_has_ended_resets_the_rest() {
    let mut connection = begun();
    assert_eq!(sent(&mut connection, &open(1, 0)), [OPENED]);
    connection.send_headers(1, b"\x88", true);
    assert_eq!(take(&mut connection), ["HEADERS 1 end", "RST_STREAM 1 0"]);
    let late = [a_frame(kind::DATA, 0, 1, b"late"), a_frame(kind::HEADERS, 5, 1, &[])].concat();
    assert_eq!(sent(&mut connection, &late), Vec::<String>::new());
    assert_eq!(take(&mut connection), Vec::<String>::new());
    assert!(!connection.has_failed());
}

#[test]
fn the_client_may_send_on_as_it_is_read() {
    let mut connection = begun();
    sent(&mut connection, &open(1, 0));
    let mut updates = Vec::new();
    for _ in 0..100 {
        assert_eq!(sent(&mut connection, &a_frame(kind::DATA, 0, 1, &[0; 16_384])), ["data 1 16384 false"]);
        updates.extend(take(&mut connection));
    }
    let widened = |stream: &str| -> usize {
        let bytes = updates.iter().filter_map(|update| update.strip_prefix(&format!("WINDOW_UPDATE {stream} ")));
        bytes.map(|bytes| bytes.parse::<usize>().unwrap()).sum()
    };
    assert!((1_600_000..=1_638_400).contains(&widened("1")), "{updates:?}");
    assert!((1_500_000..=1_638_400).contains(&widened("0")), "{updates:?}");
}

#[test]
fn an_error_of_a_stream_leaves_the_others_and_one_of_the_connection_ends_it() {
    let reset = |code: u8| a_frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, code]);
    let of_stream = [
        (a_frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), Reason::Protocol),
        (a_frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 255, 255, 255]), Reason::FlowControl),
        (a_frame(kind::HEADERS, flag::END_HEADERS, 1, &[]), Reason::Protocol),
        (a_frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0]), Reason::Protocol),
        (
            [a_frame(kind::DATA, flag::END_STREAM, 1, &[]), a_frame(kind::DATA, 0, 1, &[])].concat(),
            Reason::StreamClosed,
        ),
        ([reset(8), a_frame(kind::DATA, 0, 1, &[])].concat(), Reason::StreamClosed),
    ];
    for (input, reason) in of_stream {
        let mut connection = begun();
        sent(&mut connection, &open(1, 0));
        let events = sent(&mut connection, &[input, open(3, 0)].concat());
        assert_eq!(take(&mut connection), [format!("RST_STREAM 1 {}", reason as u32)], "{events:?}");
        assert!(events.contains(&"reset".to_owned()) && events.last().unwrap().starts_with("opened 3"), "{events:?}");
    }
    let of_connection = [
        (a_frame(kind::DATA, 0, 0, &[]), Reason::Protocol),
        (a_frame(kind::DATA, 0, 5, &[]), Reason::Protocol),
        (a_frame(kind::DATA, flag::PADDED, 1, &[4, 0, 0]), Reason::Protocol),
        (open(2, 0), Reason::Protocol),
        (a_frame(kind::HEADERS, flag::END_HEADERS, 3, &[0x80]), Reason::Compression),
        ([open(7, 0), open(5, 0)].concat(), Reason::Protocol),
        ([reset(8), open(1, 0)].concat(), Reason::StreamClosed),
        (a_frame(kind::SETTINGS, 0, 1, &[]), Reason::Protocol),
        (a_frame(kind::SETTINGS, 0, 0, &[0; 5]), Reason::FrameSize),
        (a_frame(kind::SETTINGS, 0, 0, &[0, 4, 128, 0, 0, 0]), Reason::FlowControl),
        (a_frame(kind::PING, 0, 0, &[0; 7]), Reason::FrameSize),
        (a_frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), Reason::Protocol),
        (a_frame(kind::RST_STREAM, 0, 9, &[0; 4]), Reason::Protocol),
        (a_frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]), Reason::Protocol),
        (a_frame(kind::CONTINUATION, 0, 1, &[]), Reason::Protocol),
        ([a_frame(kind::HEADERS, 0, 3, &[]), a_frame(kind::DATA, 0, 1, &[])].concat(), Reason::Protocol),
        (a_frame(kind::DATA, 0, 1, &[0; 16_385]), Reason::FrameSize),
    ];
    for (input, reason) in of_connection {
        let mut connection = begun();
        sent(&mut connection, &open(1, 0));
        sent(&mut connection, &input);
        let frames = take(&mut connection);
        assert!(
            frames
                .last()
                .is_some_and(|last| last.starts_with("GOAWAY") && last.ends_with(&format!(" {}", reason as u32))),
            "{frames:?}"
        );
        assert!(connection.is_over());
        assert_eq!(sent(&mut connection, &open(9, 0)), Vec::<String>::new(), "nothing is read any more");
    }
}

#[test]
fn more_streams_than_allowed_are_refused_and_do_not_count_as_errors() {
    let mut connection = begun();
    for stream in [1, 3, 5] {
        assert_eq!(sent(&mut connection, &open(stream, 0)).len(), 1);
    }
    for stream in (7..3_000).step_by(2) {
        assert_eq!(sent(&mut connection, &open(stream, 0)), Vec::<String>::new());
        assert_eq!(take(&mut connection), [format!("RST_STREAM {stream} 7")]);
    }
}

#[test]
fn messages_behind_the_reset_of_their_calls_are_no_errors_of_the_client() {
    let mut connection = begun();
    for call in 0..5_000 {
        let stream = 2 * call + 1;
        let cancelled = a_frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        let message = a_frame(kind::DATA, flag::END_STREAM, stream, b"late");
        sent(&mut connection, &[open(stream, 0), cancelled, message].concat());
        // RFC 9113, section 5.1.
        assert_eq!(take(&mut connection)[0], format!("RST_STREAM {stream} {}", Reason::StreamClosed as u32));
        assert!(!connection.has_failed());
    }
}

#[test]
fn a_client_with_too_many_errors_is_let_go() {
    let mut connection = begun();
    let mut frames = Vec::new();
    for stream in (1..4_000).step_by(2) {
        sent(&mut connection, &[open(stream, 0), a_frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4])].concat());
        frames = take(&mut connection);
        if connection.has_failed() {
            break;
        }
    }
    assert!(frames.last().unwrap().ends_with(" 11"), "{frames:?}");
}

#[test]
fn headers_that_are_too_large_are_answered_and_endless_ones_end_the_connection() {
    let mut connection = begun();
    let value = "a".repeat(15_000);
    let large = written(|out| {
        out.extend(block());
        (0..2).for_each(|_| hpack::literal(out, b"x-large", value.as_bytes()));
    });
    let frames = [
        a_frame(kind::HEADERS, flag::END_STREAM, 1, &large[..16_000]),
        a_frame(kind::CONTINUATION, flag::END_HEADERS, 1, &large[16_000..]),
    ];
    assert_eq!(sent(&mut connection, &frames.concat()), Vec::<String>::new());
    assert_eq!(take(&mut connection), ["HEADERS 1 end"]);
    sent(&mut connection, &a_frame(kind::HEADERS, 0, 3, &[]));
    for _ in 0..40 {
        sent(&mut connection, &a_frame(kind::CONTINUATION, 0, 3, &[]));
    }
    assert!(take(&mut connection).last().unwrap().ends_with(" 11"));
}

#[test]
fn fields_that_are_far_too_large_are_not_read_to_their_end() {
    // One entry of the table, and then over and over its index.
    let value = "a".repeat(4_000);
    let indexed = written(|out| {
        out.extend([0x40, 1, b'a', 0x7f]);
        out.extend([0xa1, 0x1e]);
        out.extend(value.as_bytes());
    });
    let again = vec![0xbe; 10_000];
    let trailers = a_frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &again);
    let call = a_frame(kind::HEADERS, flag::END_HEADERS, 3, &[block(), again].concat());
    for far in [trailers, call] {
        let mut connection = begun();
        let first = a_frame(kind::HEADERS, flag::END_HEADERS, 1, &[block(), indexed.clone()].concat());
        assert_eq!(sent(&mut connection, &first), [OPENED]);
        sent(&mut connection, &far);
        assert!(take(&mut connection).last().unwrap().ends_with(" 11"));
    }
}

#[test]
fn the_first_block_gives_up_the_table_for_clients_that_want_a_smaller_one() {
    let mut connection = begun();
    sent(&mut connection, &[open(1, flag::END_STREAM), open(3, flag::END_STREAM)].concat());
    connection.answer(1, b"\x88", b"answer", b"\x00\x01a\x01b");
    connection.answer(3, b"\x88", b"answer", b"\x00\x01a\x01b");
    let output = std::mem::take(&mut connection.output);
    assert_eq!(output[HEAD..HEAD + 2], *b"\x20\x88");
    let second = output.windows(2).filter(|bytes| bytes == b"\x20\x88").count();
    assert_eq!(second, 1);
}

#[test]
fn a_client_that_is_asked_to_leave_finishes_what_it_has_begun() {
    let mut connection = begun();
    sent(&mut connection, &open(1, 0));
    connection.leave();
    connection.leave();
    assert_eq!(take(&mut connection), [format!("GOAWAY {} 0", frame::ID), "PING".to_owned()]);
    assert_eq!(sent(&mut connection, &open(3, 0)).len(), 1, "it does not know yet");
    sent(&mut connection, &written(|out| frame::ping(out, flag::ACK, b"tollgate")));
    assert_eq!(take(&mut connection), ["GOAWAY 3 0"]);
    assert_eq!(sent(&mut connection, &open(5, 0)), Vec::<String>::new(), "ignored");
    assert!(!connection.is_over());
    connection.send_headers(1, b"\x88", true);
    connection.send_headers(3, b"\x88", true);
    assert!(connection.is_over() && !connection.has_failed());
}

#[test]
fn a_client_that_does_not_answer_is_not_alive() {
    let mut connection = begun();
    assert!(connection.is_alive());
    connection.ask_alive();
    assert!(!connection.is_alive());
    let ping = std::mem::take(&mut connection.output);
    let answer: [u8; 8] = ping[HEAD..].try_into().unwrap();
    sent(&mut connection, &written(|out| frame::ping(out, flag::ACK, &answer)));
    assert!(connection.is_alive());
}

/// A frame that may be right or wrong.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let stream = prop_oneof![0..8_u32, any::<u32>()];
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    let drawn = (0..11_u8, any::<u8>(), stream.clone(), bytes)
        .prop_map(|(kind, flags, stream, payload)| a_frame(kind, flags, stream, &payload));
    let opened = (0..8_u32, any::<bool>()).prop_map(|(stream, ended)| open(2 * stream + 1, u8::from(ended)));
    let data = (0..8_u32, any::<bool>(), 0..100_usize)
        .prop_map(|(stream, ended, size)| a_frame(kind::DATA, u8::from(ended), 2 * stream + 1, &vec![0; size]));
    prop_oneof![drawn, opened, data, any::<u8>().prop_map(|byte| vec![byte])]
}

proptest! {
    /// However the same bytes are cut, the same happens.
    #[test]
    fn any_cut_of_the_same_bytes_gives_the_same_events(
        frames in proptest::collection::vec(any_frame(), 0..20),
        cuts in proptest::collection::vec(1..60_usize, 1..40),
    ) {
        let bytes = frames.concat();
        let (mut whole, mut cut) = (begun(), begun());
        let expected = sent(&mut whole, &bytes);
        let (mut events, mut partial, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
        let mut sizes = cuts.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            partial.extend_from_slice(now);
            rest = later;
            let mut input = &partial[..];
            let before = input.len();
            events.extend(sent_from(&mut cut, &mut input));
            let taken = before - input.len();
            partial.drain(..taken);
        }
        prop_assert_eq!(events, expected);
        prop_assert_eq!(&whole.output, &cut.output);
        prop_assert!(whole.streams.len() <= 3);
    }
}

/// Damages right frames, has a connection take them in pieces, and answers some of its calls. `make fuzz` goes on for
/// as long as TOLLGATE_FUZZ_SECONDS says.
#[test]
fn damaged_frames_cause_no_panic_and_no_growth() {
    const CASES: u64 = 2_000;
    let wanted = std::env::var("TOLLGATE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    let (start, wanted) = (std::time::Instant::now(), std::time::Duration::from_secs(wanted));
    let (mut case, mut bytes) = (0, 0);
    while case < CASES || start.elapsed() < wanted {
        let outcome = std::panic::catch_unwind(|| damaged(case));
        bytes += outcome.unwrap_or_else(|_| panic!("case {case}"));
        case += 1;
    }
    println!("{case} connections, {bytes} bytes");
}

/// Returns the number of bytes that the connection of this case was sent.
fn damaged(case: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(case);
    let mut connection = begun();
    let mut open_streams = Vec::new();
    let (mut next, mut sum, mut partial) = (1, 0, Vec::new());
    for _ in 0..rng.usize(1..40) {
        let mut frames = match rng.u8(0..8) {
            0..3 => {
                next += 2;
                open(next - 2, rng.u8(0..2))
            }
            3 => a_frame(kind::DATA, rng.u8(0..2), rng.u32(0..next + 2), &vec![0; rng.usize(0..2_000)]),
            4 => written(|out| frame::window_update(out, rng.u32(0..next), rng.u32(0..1 << 31))),
            5 => written(|out| frame::settings(out, &[(rng.u16(0..8), rng.u32(0..1 << 17))])),
            6 => a_frame(rng.u8(0..11), rng.u8(..), rng.u32(0..next + 2), &vec![rng.u8(..); rng.usize(0..50)]),
            _ => a_frame(kind::RST_STREAM, 0, rng.u32(0..next), &[0, 0, 0, 8]),
        };
        if rng.u8(0..4) == 0 {
            let at = rng.usize(0..frames.len());
            frames[at] = rng.u8(..);
        }
        sum += frames.len();
        partial.extend(frames);
        let mut input = &partial[..partial.len() - rng.usize(0..=partial.len().min(20))];
        let offered = input.len();
        while let Some(event) = connection.next(&mut input) {
            if let Event::Opened { stream, .. } = event {
                open_streams.push(stream);
            }
        }
        let taken = offered - input.len();
        partial.drain(..taken);
        if let Some(stream) = open_streams.pop_if(|_| rng.bool()) {
            match rng.u8(0..4) {
                0 => connection.answer(stream, b"\x88", &vec![7; rng.usize(0..40_000)], b"\x00\x01a\x01b"),
                1 => connection.send_headers(stream, b"\x88", true),
                2 => drop(connection.reset(stream, Reason::Internal)),
                _ => {
                    connection.send_headers(stream, b"\x88", false);
                    connection.send_data(stream, Bytes::from(vec![7; rng.usize(0..70_000)]));
                    connection.send_end(stream, End::Data);
                }
            }
        }
        take(&mut connection);
        assert!(connection.streams.len() <= BOUNDS.streams as usize);
        assert!(connection.ready.len() < 100 && connection.unsent <= 3 * 110_000);
        let unsent: usize =
            connection.streams.values().filter_map(|stream| stream.unsent.as_ref()).map(|one| one.bytes).sum();
        assert_eq!(unsent, connection.unsent);
        if connection.has_failed() {
            break;
        }
    }
    sum
}
