//! Scenes that wait more than they work, played side by side.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Instant;

use futures::FutureExt;
use futures::future::join_all;

/// A scene by its name.
pub type Named<'s> = (&'static str, Pin<Box<dyn Future<Output = ()> + 's>>);

/// Plays scenes side by side, all of them to their ends, and panics with the names of those that failed.
pub async fn play(scenes: Vec<Named<'_>>) {
    let played = scenes.into_iter().map(|(name, scene)| async move {
        let begin = Instant::now();
        let failed = AssertUnwindSafe(scene).catch_unwind().await.is_err();
        println!("scene: {name}: {} after {:.1?}", if failed { "FAILED" } else { "ok" }, begin.elapsed());
        failed.then_some(name)
    });
    let failed: Vec<&str> = join_all(played).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{failed:?}");
}
