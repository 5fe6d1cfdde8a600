//! Any schedule that is taken is finite at any step, and in bulk is what it is step by step.
#![no_main]

use isobatch_core::schedule::{
    Clock, Cosine, Cycle, Decay, Exponential, Power, Reciprocal, Schedule, ScheduleError, Segment, Shape,
    Steps, Table, Tail, Tanh, Track, fill_matrix,
};
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

#[derive(Arbitrary, Debug)]
enum Curve {
    Constant,
    Power(Number, Number),
    Cosine(Number, Number, Number, bool),
    Exponential(Number, bool),
    Reciprocal(Number),
    Tanh(Number, Number),
    Table(Vec<Number>),
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

fn shape(curve: &Curve) -> Result<Shape, ScheduleError> {
    Ok(match curve {
        Curve::Constant => Shape::Constant,
        Curve::Power(exponent, stretch) => Shape::Power(Power::new(exponent.real(3), stretch.real(3))?),
        Curve::Cosine(waves, stretch, exponent, wrap) => {
            Shape::Cosine(Cosine::new(waves.real(3), stretch.real(3), exponent.real(3), *wrap)?)
        }
        Curve::Exponential(rate, stairs) => Shape::Exponential(Exponential::new(rate.real(3), *stairs)?),
        Curve::Reciprocal(exponent) => Shape::Reciprocal(Reciprocal::new(exponent.real(3))?),
        Curve::Tanh(lower, upper) => Shape::Tanh(Tanh::new(lower.real(3), upper.real(3))?),
        Curve::Table(values) => {
            Shape::Table(Table::new(&values.iter().map(|value| value.real(3)).collect::<Vec<_>>())?)
        }
    })
}

fn schedule(case: &Case) -> Result<Schedule, ScheduleError> {
    let segment = |part: &Part| {
        Ok(Segment {
            start: part.start.real(9),
            after: part.after,
            origin: part.origin.real(9),
            length: part.length.real(9),
            a: part.a.real(9),
            b: part.b.real(9),
            shape: shape(&part.curve)?,
            tail: if part.clamp { Tail::Clamp } else { Tail::Continue },
        })
    };
    let parts: Result<Vec<Segment>, ScheduleError> = case.parts.iter().take(6).map(segment).collect();
    let cycle = match &case.cycle {
        None => None,
        Some((period, multiplier, kind, factor, limit, rounded)) => {
            let factor = factor.real(3);
            let decay = match kind % 3 {
                0 => Decay::None,
                1 => Decay::Peak(factor),
                _ => Decay::Amplitude { factor, about: 0.0 },
            };
            let cycle = Cycle::new(period.real(9), multiplier.real(3), decay, *limit, 0.0)?;
            Some(if *rounded { cycle.rounded() } else { cycle })
        }
    };
    let mut made = Schedule::new(vec![Track::new(parts?, cycle)?], 0.0)?.with_scale(case.scale.real(5))?;
    if let Some(knots) = &case.clock {
        made = made
            .with_clock(Clock::new(&knots.iter().map(|(x, y)| (x.real(9), y.real(9))).collect::<Vec<_>>())?);
    }
    if let Some((low, high)) = case.clip {
        made = made.with_clip(low.real(9), high.real(9))?;
    }
    Ok(made)
}

fuzz_target!(|case: Case| {
    let Ok(schedule) = schedule(&case) else { return };
    let (start, stride, len) =
        (case.steps.0 % (1 << 40), f64::from(case.steps.1.max(1)), usize::from(case.steps.2));
    let even: Vec<f64> = (0..len).map(|i| start as f64 + i as f64 * stride).collect();
    let any: Vec<f64> = case.any.iter().map(|x| (x % (1 << 53)) as f64).collect();
    for steps in [even, any] {
        let Ok(given) = Steps::of(&steps) else { unreachable!("{steps:?}") };
        let expected: Vec<f64> = steps.iter().map(|x| schedule.at(*x)).collect();
        let mut bulk = vec![0.0_f64; steps.len()];
        fill_matrix(&[&schedule], given, &mut bulk);
        for ((x, one), many) in steps.iter().zip(&expected).zip(&bulk) {
            assert!(!one.is_nan(), "{schedule:?} at {x}");
            assert_eq!(one.is_finite(), many.is_finite(), "{schedule:?} at {x}: {one} {many}");
        }
    }
});
