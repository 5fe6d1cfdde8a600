//! A track: segments one after another, and maybe a cycle.

use super::cycle::{Cycle, Decay};
use super::error::ScheduleError;
use super::record::Record;
use super::segment::{Nested, Segment};

/// Segments in the order of their starts; the first one also holds what lies before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Track<N> {
    segments: Vec<Segment<N>>,
    cycle: Option<Cycle>,
}

impl<N: Nested> Track<N> {
    pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
        let cycle = record.part("cycle")?.map(Cycle::read).transpose()?;
        Self::new(record.parts("segments", Segment::read)?, cycle)
    }

    fn new(segments: Vec<Segment<N>>, cycle: Option<Cycle>) -> Result<Self, ScheduleError> {
        if segments.is_empty() {
            return Err(ScheduleError::new("segments", "must hold at least one segment, got none"));
        }
        if let Some(pair) = segments.windows(2).find(|pair| pair[1].start < pair[0].start) {
            return Err(ScheduleError::new(
                "segments",
                format!("starts must not fall, got {} after {}", pair[1].start, pair[0].start),
            ));
        }
        Ok(Self { segments, cycle })
    }

    /// The value at a point.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let Some(cycle) = &self.cycle else {
            return self.segments[self.index(x)].at(x, 1.0);
        };
        let (index, local) = cycle.locate(x);
        if let Some(end) = cycle.ended(index) {
            return end;
        }
        let segment = &self.segments[self.index(local)];
        match cycle.decay() {
            Decay::None => segment.at(local, 1.0),
            Decay::Peak(factor) => segment.at(local, factor.powf(index)),
            Decay::Amplitude { factor, about } => {
                let left = factor.powf(index);
                // Nothing of a curve is nothing, even of one that overflows.
                if left == 0.0 { about } else { about + (segment.at(local, 1.0) - about) * left }
            }
        }
    }

    pub(crate) fn cycle(&self) -> Option<&Cycle> {
        self.cycle.as_ref()
    }

    pub(crate) fn index(&self, x: f64) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        let reached = |s: &Segment<N>| if s.after { s.start < x } else { s.start <= x };
        // A few are sooner counted than halved.
        let count = match &self.segments[..] {
            few if few.len() <= 4 => few.iter().take_while(|s| reached(s)).count(),
            many => many.partition_point(reached),
        };
        count.saturating_sub(1)
    }

    /// The segment that holds `x`, and the one after it.
    pub(crate) fn segment(&self, x: f64) -> (&Segment<N>, Option<&Segment<N>>) {
        let index = self.index(x);
        (&self.segments[index], self.segments.get(index + 1))
    }
}
