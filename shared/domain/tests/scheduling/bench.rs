//! Packs the measured benchmark inputs, where they are, and has the independent judge beside them check the answers. KARP_BENCH_ONLY
//! names one input. On small inputs made here, prices are held between the bounds and Karpenter's rule.

#[path = "../../benches/baselines/mod.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
mod baselines;
#[path = "../../benches/inputs/mod.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
mod inputs;

use karp_domain::scheduling::solve;

use self::baselines::bound::{fluid_bound, shape_bound};
use self::baselines::first_fit::first_fit;
use self::inputs::judge::{Answer, judge};
use self::inputs::{KINDS, Kind};

#[test]
fn the_judge_finds_no_fault() {
    let Some(folder) = inputs::folder() else {
        eprintln!("skipped: neither KARP_BENCH nor shared/bench beside the repository has the measured inputs");
        return;
    };
    let only = std::env::var("KARP_BENCH_ONLY").ok();
    for kind in KINDS.into_iter().filter(|kind| only.as_ref().is_none_or(|only| *only == kind.to_string())) {
        let solution = solve(&kind.snapshot());
        match judge(&folder, kind, &Answer::from(&solution)) {
            Ok(figures) => println!("{kind}: {figures}"),
            Err(faults) => panic!("{kind}: the judge found a fault: {faults}"),
        }
    }
}

#[test]
fn prices_lie_between_the_bounds_and_karpenters_rule() {
    for kind in [Kind::Ec2Plain(200), Kind::Ec2Diverse(180), Kind::Ec2SpreadHeavy(120)] {
        let snapshot = kind.generated();
        let (solution, rule) = (solve(&snapshot), first_fit(&snapshot));
        assert_eq!((solution.unschedulable.len(), rule.unplaced.len()), (0, 0), "{kind}");
        let prices = [fluid_bound(&snapshot), shape_bound(&snapshot), solution.price().dollars(), rule.price];
        assert!(prices.windows(2).all(|pair| pair[0] <= pair[1] * 1.0001), "{kind}: {prices:?}");
    }
}
