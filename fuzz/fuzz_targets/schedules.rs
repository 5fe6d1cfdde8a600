//! Any legal form is a schedule whose values are numbers, and in bulk it is finite where it is so step by
//! step.
#![no_main]

use isobatch_core::schedule::{Entry, Record, STEP_LIMIT, Schedule, Steps, fill_matrix};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::AtomicBool;

/// digits · 10^power.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Number(i16, i8);

#[derive(Arbitrary, Debug)]
struct Part {
    start: Number,
    after: bool,
    origin: Number,
    length: Number,
    a: Number,
    b: Number,
    beyond: bool,
    kind: u8,
    parameters: [Number; 3],
    flag: bool,
    values: Vec<Number>,
}

#[derive(Arbitrary, Debug)]
struct Repeat {
    numbers: [Number; 6],
    limit: Option<u32>,
    rounded: bool,
}

#[derive(Arbitrary, Debug)]
struct Case {
    tracks: Vec<(Vec<Part>, Option<Repeat>)>,
    clock: Vec<(Number, Number)>,
    floor: Number,
    low: Option<Number>,
    high: Option<Number>,
    scale: Number,
    last: Option<Number>,
    steps: (u64, u32, u8),
    any: Vec<u64>,
}

fn real(Number(digits, power): Number) -> f64 {
    f64::from(digits) * 10.0_f64.powi(i32::from(power) % 12)
}

fn number(value: Number) -> Entry {
    Entry::Number(real(value))
}

fn maybe(value: Option<Number>) -> Entry {
    value.map_or(Entry::Nothing, number)
}

fn record<const N: usize>(name: &str, fields: [(&str, Entry); N]) -> Record {
    let names = fields.each_ref().map(|(name, _)| (*name).to_owned());
    Record { name: name.into(), names: names.into(), entries: fields.map(|(_, entry)| entry).into() }
}

fn shape(part: &Part) -> Record {
    let [first, second, third] = part.parameters.map(number);
    let (values, flag) = (part.values.iter().map(|value| real(*value)).collect(), Entry::Flag(part.flag));
    match part.kind % 8 {
        0 => record("constant", []),
        1 => record("power", [("stretch", first), ("exponent", second)]),
        2 => record("cosine", [("waves", first), ("stretch", second), ("exponent", third), ("wrap", flag)]),
        3 => record("exponential", [("rate", first), ("stairs", flag)]),
        4 => record("reciprocal", [("exponent", first)]),
        5 => record("rex", []),
        6 => record("tanh", [("lower", first), ("upper", second)]),
        _ => record("table", [("values", Entry::Numbers(values))]),
    }
}

fn segment(part: &Part) -> Entry {
    let Part { start, after, origin, length, a, b, beyond, .. } = part;
    Entry::Record(record(
        "segment",
        [
            ("start", number(*start)),
            ("after", Entry::Flag(*after)),
            ("origin", number(*origin)),
            ("length", number(*length)),
            ("a", number(*a)),
            ("b", number(*b)),
            ("beyond", Entry::Flag(*beyond)),
            ("shape", Entry::Record(shape(part))),
        ],
    ))
}

fn cycle(repeat: &Repeat) -> Entry {
    let [period, multiplier, peak, amplitude, about, end] = repeat.numbers.map(number);
    Entry::Record(record(
        "cycle",
        [
            ("period", period),
            ("multiplier", multiplier),
            ("peak_decay", peak),
            ("amplitude_decay", amplitude),
            ("about", about),
            ("limit", repeat.limit.map_or(Entry::Nothing, |limit| Entry::Number(limit.into()))),
            ("end", end),
            ("rounded", Entry::Flag(repeat.rounded)),
        ],
    ))
}

fn form(case: &Case) -> Record {
    let track = |(parts, repeat): &(Vec<Part>, Option<Repeat>)| {
        let segments = Entry::List(parts.iter().take(5).map(segment).collect());
        let cycle = repeat.as_ref().map_or(Entry::Nothing, cycle);
        Entry::Record(record("track", [("segments", segments), ("cycle", cycle)]))
    };
    let knots = case.clock.iter().map(|(step, at)| Entry::Numbers(vec![real(*step), real(*at)]));
    record(
        "form",
        [
            ("tracks", Entry::List(case.tracks.iter().take(3).map(track).collect())),
            ("clock", Entry::List(knots.collect())),
            ("floor", number(case.floor)),
            ("low", maybe(case.low)),
            ("high", maybe(case.high)),
            ("scale", number(case.scale)),
            ("last", maybe(case.last)),
            ("run", Entry::Nothing),
        ],
    )
}

fuzz_target!(|case: Case| {
    let Ok(schedule) = Schedule::read(&form(&case)) else { return };
    let (start, stride, len) =
        (case.steps.0 % (1 << 40), f64::from(case.steps.1.max(1)), usize::from(case.steps.2));
    let even: Vec<f64> = (0..len).map(|i| start as f64 + i as f64 * stride).collect();
    let any: Vec<f64> = case.any.iter().map(|x| (x % (1 << 53)) as f64).collect();
    for steps in [even, any] {
        assert!(steps.iter().all(|step| *step < STEP_LIMIT));
        let Ok(given) = Steps::of(&steps) else { panic!("{steps:?}") };
        if steps.iter().any(|step| schedule.check(*step).is_err()) {
            continue;
        }
        let expected: Vec<f64> = steps.iter().map(|step| schedule.at(*step)).collect();
        let mut bulk = vec![0.0_f64; steps.len()];
        let filled = fill_matrix(&[&schedule], given, &mut bulk, &AtomicBool::new(false));
        if filled.is_ok() {
            for ((step, single), many) in steps.iter().zip(&expected).zip(&bulk) {
                assert!(many.is_finite(), "{schedule:?} at {step}: {many}");
                // Near the end of all numbers one of the two may overflow on its way to a value that is one.
                assert!(
                    single.is_finite() || many.abs() > 1e280,
                    "{schedule:?} at {step}: {single}, in bulk {many}"
                );
            }
        } else {
            assert!(
                expected.iter().any(|value| !value.is_finite() || value.abs() > 1e300),
                "{schedule:?} at {steps:?}: {filled:?}"
            );
        }
    }
});
