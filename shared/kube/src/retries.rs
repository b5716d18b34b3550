//! When a call that the API server refuses for now is tried again.

use std::time::Duration;

use kube::client::retry::RetryPolicy;
use tower::retry::RetryLayer;

/// The first pause; each is about twice the last one.
const FIRST: Duration = Duration::from_millis(5);
/// No pause is longer, unless the API server asks for one. kube's own grow to minutes: who sleeps so long outlasts the outage.
const LONGEST: Duration = Duration::from_secs(5);
/// So many tries after the first take half a minute in all.
const TIMES: u32 = 15;

/// Makes what tries refusals that pass (429, 503, 504) again, for half a minute, and not before the answer's `Retry-After`.
#[must_use]
pub fn retries() -> RetryLayer<RetryPolicy> {
    RetryLayer::new(policy())
}

fn policy() -> RetryPolicy {
    // it refuses only a first pause that is longer than the longest
    RetryPolicy::new(FIRST, LONGEST, TIMES, true).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use tokio::time::Instant;
    use tower::BoxError;
    use tower::retry::Policy;

    use super::*;

    /// Returns the pauses after answers of 503.
    fn pauses(retry_after: Option<&str>) -> Vec<Duration> {
        let mut policy = policy();
        let mut request = Request::new(Body::from(Vec::new()));
        let mut answer = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
        if let Some(seconds) = retry_after {
            answer = answer.header("Retry-After", seconds);
        }
        let mut refused: Result<Response<()>, BoxError> = Ok(answer.body(()).expect("an answer"));
        let mut pauses = Vec::new();
        loop {
            let begin = Instant::now();
            let Some(pause) = policy.retry(&mut request, &mut refused) else { return pauses };
            pauses.push(pause.deadline().duration_since(begin));
        }
    }

    #[tokio::test]
    async fn a_refusal_that_passes_is_tried_again_for_half_a_minute_and_no_pause_outlasts_the_outage() {
        let all = pauses(None);
        let whole: Duration = all.iter().sum();
        assert_eq!(all.len(), 15);
        assert!(all.iter().all(|pause| *pause < LONGEST + Duration::from_secs(1)), "{all:?}");
        assert!((25..45).contains(&whole.as_secs()), "{whole:?}");
    }

    #[tokio::test]
    async fn the_api_server_is_left_alone_for_as_long_as_it_asks() {
        let all = pauses(Some("7"));
        assert!(all.iter().all(|pause| (7..9).contains(&pause.as_secs())), "{all:?}");
    }
}
