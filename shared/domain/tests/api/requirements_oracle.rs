//! Requirements against a judge by brute force: labels are enumerated, and each expression is asked by itself, as kube-scheduler does.
//! Beside it stands Karpenter's rule (`reference/karpenter.md` 4.4), with which `compatible` agrees wherever kube-scheduler does.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::api::labels;
use karp_domain::requirement::{Operator, Requirement, Requirements, Undefined};
use proptest::prelude::*;

use crate::deep;

/// Values that expressions name.
const NAMED: &[&str] = &["a", "b", "1", "2", "3", "10", "007"];
const KEYS: &[&str] = &["team", "tier", labels::ZONE];

/// One expression of the API.
#[derive(Clone, Debug)]
struct Expression {
    key: &'static str,
    operator: Operator,
    values: Vec<String>,
}

/// Expressions that all have to hold.
type All = Vec<Expression>;

impl Expression {
    /// The rule of node affinity for one label; nothing stands for a label that is missing.
    fn holds(&self, label: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let compare = |by: fn(&i64, &i64) -> bool| match (label.and_then(number), number(&self.values[0])) {
            (Some(label), Some(bound)) => by(&label, &bound),
            _ => false,
        };
        let named = label.is_some_and(|label| self.values.iter().any(|value| value == label));
        match self.operator {
            Operator::In => named,
            Operator::NotIn => !named,
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::Gt => compare(i64::gt),
            Operator::Gte => compare(i64::ge),
            Operator::Lt => compare(i64::lt),
            Operator::Lte => compare(i64::le),
        }
    }

    fn read(&self) -> Requirement {
        Requirement::new(self.key, self.operator, &self.values).expect("an expression that the API admits")
    }
}

fn read(all: &All) -> Requirements {
    all.iter().map(Expression::read).collect()
}

fn on<'a>(all: &'a All, key: &str) -> Vec<&'a Expression> {
    all.iter().filter(|expression| expression.key == key).collect()
}

fn keys(all: &All) -> BTreeSet<&'static str> {
    all.iter().map(|expression| expression.key).collect()
}

/// Enough values to witness anything that expressions over `NAMED` leave possible: what they name, what none names, and each number near a
/// bound in spellings that none excludes.
fn universe() -> Vec<Option<String>> {
    let mut all: BTreeSet<String> = NAMED.iter().map(ToString::to_string).collect();
    all.insert("unnamed".to_owned());
    for number in (-2..=13).chain([i64::MAX - 1, i64::MAX, i64::MIN, i64::MIN + 1]) {
        all.insert(number.to_string());
        let sign = if number < 0 { "-" } else { "" };
        all.insert(format!("{sign}00000{}", number.unsigned_abs()));
    }
    std::iter::once(None).chain(all.into_iter().map(Some)).collect()
}

/// Whether some label satisfies all expressions.
fn possible(all: &[&Expression], universe: &[Option<String>]) -> bool {
    universe.iter().any(|label| all.iter().all(|expression| expression.holds(label.as_deref())))
}

fn expression(bounds: BoxedStrategy<i64>) -> impl Strategy<Value = Expression> {
    let key = prop::sample::select(KEYS);
    let named = |least: usize| prop::sample::subsequence(NAMED, least..=4);
    let texts = |values: Vec<&'static str>| values.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let operator = prop_oneof![
        named(1).prop_map(move |values| (Operator::In, texts(values))),
        named(1).prop_map(move |values| (Operator::NotIn, texts(values))),
        Just((Operator::Exists, Vec::new())),
        Just((Operator::DoesNotExist, Vec::new())),
        (prop::sample::select(&[Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte][..]), bounds)
            .prop_map(|(operator, bound)| (operator, vec![bound.to_string()])),
    ];
    (key, operator).prop_map(|(key, (operator, values))| Expression { key, operator, values })
}

fn small() -> BoxedStrategy<i64> {
    (-1_i64..12).boxed()
}

fn any_bound() -> BoxedStrategy<i64> {
    prop_oneof![8 => small(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)].boxed()
}

fn expressions() -> impl Strategy<Value = All> {
    prop::collection::vec(expression(any_bound()), 0..6)
}

/// At most one expression a key.
fn simple() -> impl Strategy<Value = All> {
    prop::collection::vec(expression(small()), 0..5).prop_map(|all| {
        let first: BTreeMap<&str, Expression> = all.into_iter().rev().map(|e| (e.key, e)).collect();
        first.into_values().collect()
    })
}

/// A requirement as Karpenter holds it.
struct Karpenter {
    complement: bool,
    values: BTreeSet<String>,
    low: Option<i64>,
    high: Option<i64>,
}

impl Karpenter {
    fn of(expression: &Expression) -> Self {
        let number = || expression.values[0].parse::<i64>().ok();
        let mut this = Karpenter { complement: true, values: BTreeSet::new(), low: None, high: None };
        match expression.operator {
            Operator::In => {
                this.complement = false;
                this.values.extend(expression.values.iter().cloned());
            }
            Operator::NotIn => this.values.extend(expression.values.iter().cloned()),
            Operator::Exists => {}
            Operator::DoesNotExist => this.complement = false,
            Operator::Gt => this.low = number().map(|n| n.saturating_add(1)),
            Operator::Gte => this.low = number(),
            Operator::Lt => this.high = number().map(|n| n.saturating_sub(1)),
            Operator::Lte => this.high = number(),
        }
        this
    }

    fn and(&self, other: &Self) -> Self {
        let low = self.low.max(other.low);
        let high = self.high.into_iter().chain(other.high).min();
        if low.zip(high).is_some_and(|(low, high)| low > high) {
            return Karpenter { complement: false, values: BTreeSet::new(), low: None, high: None };
        }
        let mut values: BTreeSet<String> = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values).cloned().collect(),
            (true, false) => other.values.difference(&self.values).cloned().collect(),
            (false, true) => self.values.difference(&other.values).cloned().collect(),
            (false, false) => self.values.intersection(&other.values).cloned().collect(),
        };
        let within = |value: &String| match value.parse::<i64>() {
            Ok(number) => low.is_none_or(|low| number >= low) && high.is_none_or(|high| number <= high),
            Err(_) => low.is_none() && high.is_none(),
        };
        values.retain(within);
        let complement = self.complement && other.complement;
        let (low, high) = if complement { (low, high) } else { (None, None) };
        Karpenter { complement, values, low, high }
    }

    /// `NotIn` or `DoesNotExist`, the operators with which absence is no fault.
    fn is_negative(&self) -> bool {
        self.complement != self.values.is_empty()
    }

    fn of_key(all: &All, key: &str) -> Option<Self> {
        on(all, key).into_iter().map(Self::of).reduce(|a, b| a.and(&b))
    }

    fn intersects(mine: &All, incoming: &All) -> bool {
        keys(mine).intersection(&keys(incoming)).all(|key| {
            let (Some(a), Some(b)) = (Self::of_key(mine, key), Self::of_key(incoming, key)) else { return true };
            let both = a.and(&b);
            both.complement || !both.values.is_empty() || a.is_negative() && b.is_negative()
        })
    }

    fn compatible(mine: &All, incoming: &All, open: bool) -> bool {
        let defined = keys(incoming).into_iter().all(|key| {
            let negative = Self::of_key(incoming, key).is_some_and(|r| r.is_negative());
            keys(mine).contains(key) || negative || open && key == labels::ZONE
        });
        defined && Self::intersects(mine, incoming)
    }
}

proptest! {
    #![proptest_config(deep::cases(400))]

    #[test]
    fn labels_match_where_every_expression_holds(all in expressions(), more in expressions()) {
        let (one, other) = (read(&all), read(&more));
        let both = one.and(&other);
        let states: Vec<Option<&str>> = [None, Some("a"), Some("b"), Some("1"), Some("3"), Some("007"), Some("unnamed"), Some("9223372036854775807")].to_vec();
        for (team, tier, zone) in states.iter().flat_map(|a| states.iter().flat_map(|b| states.iter().map(|c| (*a, *b, *c)))) {
            let of = |key: &str| if key == KEYS[0] { team } else if key == KEYS[1] { tier } else { zone };
            let map: BTreeMap<String, String> = KEYS.iter().filter_map(|key| Some((key.to_string(), of(key)?.to_owned()))).collect();
            let holds = |list: &All| list.iter().all(|expression| expression.holds(of(expression.key)));
            prop_assert_eq!(one.match_labels(&map), holds(&all), "{} at {:?}", one, map);
            prop_assert_eq!(both.match_labels(&map), holds(&all) && holds(&more), "{} at {:?}", both, map);
            // a node that exists is a set of settled requirements
            let node = Requirements::from_labels(&map);
            prop_assert_eq!(node.is_compatible(&one, Undefined::Denied), one.match_labels(&map), "{} at {:?}", one, map);
        }
    }

    #[test]
    fn intersection_is_what_some_label_satisfies(all in expressions(), more in expressions()) {
        let universe = universe();
        let (one, other) = (read(&all), read(&more));
        let shared: Vec<&str> = keys(&all).intersection(&keys(&more)).copied().collect();
        let expected = shared.iter().all(|key| possible(&[on(&all, key), on(&more, key)].concat(), &universe));
        prop_assert_eq!(one.overlaps(&other), expected, "{} | {}", one, other);
        prop_assert_eq!(one.intersects(&other).is_ok(), expected);
        for key in shared {
            let (a, b) = (one.get(key).unwrap(), other.get(key).unwrap());
            prop_assert_eq!(a.intersection(b).is_impossible(), !possible(&[on(&all, key), on(&more, key)].concat(), &universe));
        }
    }

    #[test]
    fn one_is_within_another_where_each_label_that_satisfies_it_satisfies_both(all in expressions(), more in expressions()) {
        let universe = universe();
        let (one, other) = (read(&all), read(&more));
        let holds = |all: &[&Expression], label: Option<&str>| all.iter().all(|expression| expression.holds(label));
        for key in keys(&all).intersection(&keys(&more)) {
            let (narrow, wide) = (on(&all, key), on(&more, key));
            let mut witnesses = universe.iter().map(Option::as_deref).filter(|label| holds(&narrow, *label));
            let expected = witnesses.all(|label| holds(&wide, label));
            let (a, b) = (one.get(key).unwrap(), other.get(key).unwrap());
            prop_assert_eq!(a.is_within(b), expected, "{} within {}", a, b);
        }
    }

    #[test]
    fn compatible_is_what_a_node_of_these_requirements_can_become(pool in expressions(), pod in expressions()) {
        let universe = universe();
        let (offered, wanted) = (read(&pool), read(&pod));
        for undefined in [Undefined::Denied, Undefined::WellKnownAllowed] {
            let expected = keys(&pod).into_iter().all(|key| {
                let asked = on(&pod, key);
                let open = undefined == Undefined::WellKnownAllowed && key == labels::ZONE;
                if keys(&pool).contains(key) {
                    possible(&[on(&pool, key), asked].concat(), &universe)
                } else {
                    possible(&asked, &universe) && (open || asked.iter().all(|expression| expression.holds(None)))
                }
            });
            prop_assert_eq!(offered.compatible(&wanted, undefined).is_ok(), expected, "{} wants {}", offered, wanted);
            prop_assert_eq!(offered.is_compatible(&wanted, undefined), expected);
        }
    }

    #[test]
    fn one_expression_a_key_is_judged_as_karpenter_judges_it(pool in simple(), pod in simple()) {
        let (offered, wanted) = (read(&pool), read(&pod));
        prop_assert_eq!(offered.is_compatible(&wanted, Undefined::WellKnownAllowed), Karpenter::compatible(&pool, &pod, true), "{} wants {}", offered, wanted);
        prop_assert_eq!(offered.is_compatible(&wanted, Undefined::Denied), Karpenter::compatible(&pool, &pod, false));
        prop_assert_eq!(offered.overlaps(&wanted), Karpenter::intersects(&pool, &pod));
    }

    #[test]
    fn nothing_is_compatible_that_karpenter_would_refuse(pool in expressions(), pod in expressions()) {
        let (offered, wanted) = (read(&pool), read(&pod));
        for (undefined, open) in [(Undefined::Denied, false), (Undefined::WellKnownAllowed, true)] {
            if offered.is_compatible(&wanted, undefined) {
                prop_assert!(Karpenter::compatible(&pool, &pod, open), "{} wants {}", offered, wanted);
            }
        }
    }
}

/// Where kube-scheduler asks each expression by itself, Karpenter's merged requirement forgets that a label must be there.
#[test]
fn what_karpenter_forgets_is_kept() {
    let expression = |operator, values: &[&str]| Expression {
        key: "team",
        operator,
        values: values.iter().map(ToString::to_string).collect(),
    };
    let cases = [
        vec![expression(Operator::Exists, &[]), expression(Operator::NotIn, &["a"])],
        vec![expression(Operator::In, &["a"]), expression(Operator::In, &["b"])],
        vec![expression(Operator::Gt, &["3"]), expression(Operator::NotIn, &["5"])],
        vec![expression(Operator::Gt, &["3"]), expression(Operator::Lt, &["3"])],
    ];
    for pod in cases {
        assert!(Karpenter::compatible(&Vec::new(), &pod, true));
        assert!(!Requirements::new().is_compatible(&read(&pod), Undefined::WellKnownAllowed), "{}", read(&pod));
        assert!(!read(&pod).match_labels(&BTreeMap::new()));
    }
}
