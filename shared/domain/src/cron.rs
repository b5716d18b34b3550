//! Cron schedules in UTC, read as robfig's standard parser reads them: five fields or a macro.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;

/// A schedule without a hit within so many years has none, as in robfig.
const YEARS: i16 = 5;
/// Set in a field that is `*` or `?`: days of month and of week then must both match, else one is enough.
const STAR: u64 = 1 << 63;

/// A recurring time: minutes, hours, days of month, months and days of week as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cron {
    /// Hits at the times that five fields describe.
    Fields { minutes: u64, hours: u64, days: u64, months: u64, weekdays: u64 },
    /// Hits a fixed number of seconds after the last look (`@every 1h`).
    Every { seconds: i64 },
}

/// Says why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCronError {
    #[error("{0:?} has not five fields: write minute, hour, day of month, month and day of week, such as 0 9 * * 1-5")]
    Fields(String),
    #[error("{0:?} is no macro: use one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly")]
    Macro(String),
    #[error("{part:?} is no {field}: use numbers from {least} to {most}, ranges, steps, lists or *")]
    Part { part: String, field: &'static str, least: u32, most: u32 },
}

/// What one field may hold.
struct Bounds {
    field: &'static str,
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const BOUNDS: [Bounds; 5] = [
    Bounds { field: "minute", least: 0, most: 59, names: &[] },
    Bounds { field: "hour", least: 0, most: 23, names: &[] },
    Bounds { field: "day of month", least: 1, most: 31, names: &[] },
    Bounds { field: "month", least: 1, most: 12, names: MONTHS },
    Bounds { field: "day of week", least: 0, most: 6, names: WEEKDAYS },
];

impl FromStr for Cron {
    type Err = ParseCronError;

    fn from_str(text: &str) -> Result<Self, ParseCronError> {
        // The zone that Karpenter puts in front ends at the first space; what follows is trimmed.
        let text = text.trim();
        if text.starts_with('@') {
            return descriptor(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        if fields.len() != BOUNDS.len() {
            return Err(ParseCronError::Fields(text.to_owned()));
        }
        let mut bits = [0; 5];
        for ((bits, field), bounds) in bits.iter_mut().zip(fields).zip(&BOUNDS) {
            *bits = field_bits(field, bounds)?;
        }
        let [minutes, hours, days, months, weekdays] = bits;
        Ok(Self::Fields { minutes, hours, days, months, weekdays })
    }
}

fn descriptor(text: &str) -> Result<Cron, ParseCronError> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other => {
            let every = other.strip_prefix("@every ").and_then(crate::api::go_duration);
            // Shorter than a second counts as one.
            let every = every.map(|length| Cron::Every { seconds: length.as_secs().max(1) });
            return every.ok_or_else(|| ParseCronError::Macro(text.to_owned()));
        }
    };
    fields.parse()
}

fn field_bits(field: &str, bounds: &Bounds) -> Result<u64, ParseCronError> {
    // Empty items of a list are passed over.
    field.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | part_bits(part, bounds)?))
}

fn part_bits(part: &str, bounds: &Bounds) -> Result<u64, ParseCronError> {
    let wrong =
        || ParseCronError::Part { part: part.to_owned(), field: bounds.field, least: bounds.least, most: bounds.most };
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let (from, to) = range.split_once('-').map_or((range, None), |(from, to)| (from, Some(to)));
    let step_by = step.map_or(Some(1), number).filter(|step| *step > 0).ok_or_else(wrong)?;
    let (first, last, star) = if from == "*" || from == "?" {
        // As in robfig, what follows a star's hyphen is not looked at.
        (bounds.least, bounds.most, if step_by > 1 { 0 } else { STAR })
    } else {
        let first = named(from, bounds).ok_or_else(wrong)?;
        let last = match to {
            Some(to) => named(to, bounds).ok_or_else(wrong)?,
            // A step without an end runs to the field's end.
            None if step.is_some() => bounds.most,
            None => first,
        };
        (first, last, 0)
    };
    if first < bounds.least || last > bounds.most || first > last {
        return Err(wrong());
    }
    let stride = usize::try_from(step_by).map_err(|_| wrong())?;
    Ok((first..=last).step_by(stride).fold(star, |bits, value| bits | 1 << value))
}

fn named(text: &str, bounds: &Bounds) -> Option<u32> {
    let lower = text.to_lowercase();
    let name = bounds.names.iter().position(|name| *name == lower).and_then(|index| u32::try_from(index).ok());
    name.map(|index| index + bounds.least).or_else(|| number(text))
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

impl Cron {
    /// Returns the first hit after a time; nothing when none comes within five years.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let (minutes, hours) = match self {
            Self::Every { seconds } => return Timestamp::from_second(after.as_second().checked_add(*seconds)?).ok(),
            Self::Fields { minutes, hours, .. } => (*minutes, *hours),
        };
        let minute = Timestamp::from_second(after.as_second().div_euclid(60).checked_add(1)?.checked_mul(60)?).ok()?;
        let start = minute.to_zoned(TimeZone::UTC).datetime();
        let end = start.year().checked_add(YEARS)?;
        let mut date = start.date();
        let mut from = (start.hour(), start.minute());
        while date.year() <= end {
            if self.on(date)
                && let Some((hour, minute)) = first_time(hours, minutes, from)
            {
                return date.at(hour, minute, 0, 0).to_zoned(TimeZone::UTC).ok().map(|hit| hit.timestamp());
            }
            date = date.tomorrow().ok()?;
            from = (0, 0);
        }
        None
    }

    fn on(&self, date: Date) -> bool {
        let Self::Fields { days, months, weekdays, .. } = self else { return false };
        let has = |bits: u64, value: i8| bits & (1 << value) != 0;
        let day = has(*days, date.day());
        let weekday = has(*weekdays, date.weekday().since(Weekday::Sunday));
        let both = (days | weekdays) & STAR != 0;
        has(*months, date.month()) && if both { day && weekday } else { day || weekday }
    }
}

/// Returns the first time of day, as hour and minute, that is not before another.
fn first_time(hours: u64, minutes: u64, from: (i8, i8)) -> Option<(i8, i8)> {
    let has = |bits: u64, value: i8| bits & (1 << value) != 0;
    (from.0..24).filter(|hour| has(hours, *hour)).find_map(|hour| {
        let least = if hour == from.0 { from.1 } else { 0 };
        (least..60).find(|minute| has(minutes, *minute)).map(|minute| (hour, minute))
    })
}
