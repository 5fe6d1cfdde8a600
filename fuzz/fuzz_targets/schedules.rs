//! Any schedule that is taken is finite at any step, and in bulk is what it is step by step.
#![no_main]

use std::sync::atomic::AtomicBool;

use isobatch_core::schedule::{Entry, Halt, Record, Schedule, Shape, Steps, fill_matrix};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// digits · 10^power.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Number(i16, i8);

impl Number {
    fn real(self, most: i32) -> f64 {
        f64::from(self.0) * 10.0_f64.powi(i32::from(self.1) % most)
    }
}

/// Any shape of the core: it takes the fields that it knows.
#[derive(Arbitrary, Debug)]
struct Curve {
    shape: u8,
    numbers: [Number; 3],
    flag: bool,
    values: Vec<Number>,
}

#[derive(Arbitrary, Debug)]
struct Part {
    start: Number,
    after: bool,
    origin: Number,
    length: Number,
    a: Number,
    b: Number,
    curve: Curve,
    clamp: bool,
}

#[derive(Arbitrary, Debug)]
struct Case {
    parts: Vec<Part>,
    cycle: Option<(Number, Number, u8, Number, Option<u64>, bool)>,
    clock: Option<Vec<(Number, Number)>>,
    clip: Option<(Number, Number)>,
    scale: Number,
    steps: (u64, u32, u8),
    any: Vec<u64>,
}

fn record(name: &str, fields: impl IntoIterator<Item = (&'static str, Entry)>) -> Record {
    let (names, entries): (Vec<String>, _) =
        fields.into_iter().map(|(name, entry)| (name.to_owned(), entry)).unzip();
    Record { name: name.into(), names: names.into(), entries }
}

fn numbers(values: &[Number]) -> Entry {
    Entry::Numbers(values.iter().map(|value| value.real(3)).collect())
}

fn shape(curve: &Curve) -> Record {
    let [first, second, third] = curve.numbers.map(|number| Entry::Number(number.real(3)));
    let real = |names: &[&'static str], entry: &Entry| {
        names.iter().map(|name| (*name, entry.clone())).collect::<Vec<_>>()
    };
    let fields = [
        real(&["stretch", "rate", "lower"], &first),
        real(&["exponent", "upper"], &second),
        real(&["waves"], &third),
        vec![
            ("wrap", Entry::Flag(curve.flag)),
            ("stairs", Entry::Flag(curve.flag)),
            ("values", numbers(&curve.values)),
        ],
    ];
    record(Shape::NAMES[usize::from(curve.shape) % Shape::NAMES.len()], fields.into_iter().flatten())
}

fn segment(part: &Part) -> Entry {
    let real = |number: Number| Entry::Number(number.real(9));
    Entry::Record(record(
        "",
        [
            ("start", real(part.start)),
            ("after", Entry::Flag(part.after)),
            ("origin", real(part.origin)),
            ("length", real(part.length)),
            ("a", real(part.a)),
            ("b", real(part.b)),
            ("shape", Entry::Record(shape(&part.curve))),
            ("beyond", Entry::Flag(!part.clamp)),
        ],
    ))
}

fn cycle(
    (period, multiplier, kind, factor, limit, rounded): &(Number, Number, u8, Number, Option<u64>, bool),
) -> Entry {
    let factor = |on: bool| Entry::Number(if on { factor.real(3) } else { 1.0 });
    Entry::Record(record(
        "",
        [
            ("period", Entry::Number(period.real(9))),
            ("multiplier", Entry::Number(multiplier.real(3))),
            ("peak_decay", factor(kind % 3 == 1)),
            ("amplitude_decay", factor(kind % 3 == 2)),
            ("about", Entry::Number(0.0)),
            ("limit", limit.map_or(Entry::Nothing, |limit| Entry::Number((limit % (1 << 53)) as f64))),
            ("end", Entry::Number(0.0)),
            ("rounded", Entry::Flag(*rounded)),
        ],
    ))
}

fn form(case: &Case) -> Record {
    let pair = |&(x, y): &(Number, Number)| Entry::Numbers(vec![x.real(9), y.real(9)]);
    let bound =
        |number: Option<Number>| number.map_or(Entry::Nothing, |number| Entry::Number(number.real(9)));
    let track = record(
        "",
        [
            ("segments", Entry::List(case.parts.iter().take(6).map(segment).collect())),
            ("cycle", case.cycle.as_ref().map_or(Entry::Nothing, cycle)),
        ],
    );
    record(
        "",
        [
            ("tracks", Entry::List(vec![Entry::Record(track)])),
            ("clock", Entry::List(case.clock.iter().flatten().map(pair).collect())),
            ("floor", Entry::Number(0.0)),
            ("low", bound(case.clip.map(|clip| clip.0))),
            ("high", bound(case.clip.map(|clip| clip.1))),
            ("scale", Entry::Number(case.scale.real(5))),
            ("last", Entry::Nothing),
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
        let Ok(given) = Steps::of(&steps) else { unreachable!("{steps:?}") };
        let mut bulk = vec![0.0_f64; steps.len()];
        match fill_matrix(&[&schedule], given, &mut bulk, &AtomicBool::new(false)) {
            Ok(()) => {
                for (x, many) in steps.iter().zip(&bulk) {
                    let one = schedule.at(*x);
                    assert!(one.is_finite() && many.is_finite(), "{schedule:?} at {x}: {one} {many}");
                }
            }
            // What is near the largest number may overflow in one way and not in the other.
            Err(Halt::Overflow { step, .. }) => {
                let one = schedule.at(step);
                assert!(!one.is_finite() || one.abs() > 1e290, "{schedule:?} at {step}: {one}");
            }
            Err(Halt::Stopped) => unreachable!("nobody asked for it"),
        }
    }
});
