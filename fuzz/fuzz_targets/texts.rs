//! Any text of any field is a value or illegal; lengths and ramps that are read obey arithmetic.
#![no_main]

use isobatch_core::input::Input;
use isobatch_core::lengths::{self, Length, Ramp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (u8, u16, &str)| {
    let (number, of, text) = given;
    let field = isobatch_fuzz::field(number);
    let value = field.read(text);
    assert_eq!(field.read(&format!(" {text} ")), value, "white space around a value says something");
    Input::default().set(field, &value);
    let of = u64::from(of).max(1);
    if let Some(length) = Length::parse(text) {
        let (low, high) = (length.floor_of(of, 7), length.ceil_of(of, 7));
        if let (Some(low), Some(high)) = (low, high) {
            assert!(low == high || low + 1 == high, "{length:?} of {of}: {low} {high}");
        }
        assert_eq!(length.is_zero(), length.ceil_of(1, 1) == Some(0));
    }
    if let Some(stages) = Ramp::parse(text).and_then(|ramp| ramp.stages(of, of, Some(2048), 0)) {
        assert_eq!(stages.last().map(|stage| (stage.batch, stage.until)), Some((of, u64::MAX)), "{stages:?}");
        assert!(stages.windows(2).all(|pair| pair[0].until <= pair[1].until), "{stages:?}");
        let steps = lengths::steps(&stages, 1 << 40, false);
        let samples = lengths::samples(&stages, steps);
        assert!(
            samples >= 1 << 40 && lengths::samples(&stages, steps - 1) < 1 << 40,
            "{stages:?}: {steps} {samples}"
        );
    }
});
