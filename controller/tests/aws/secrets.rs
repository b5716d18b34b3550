//! What a controller logs with everything on holds no secret.

use super::support::stand::Stand;

/// Neither the session at AWS nor the account's token at the API server can be read from the log.
#[tokio::test]
async fn no_secret_is_logged_whatever_is_asked_for() {
    let Some(mut stand) = Stand::open("secrets").await else { return };
    stand.pool(&["on-demand"]).await;
    stand.start_with(&[("RUST_LOG", "trace")]);
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let log = stand.log();
    let traced = log.lines().filter(|line| line.contains(r#""level":"TRACE""#)).count();
    assert!(traced > 1000, "little is traced: {traced} lines");
    for (name, secret) in stand.secrets() {
        let told: Vec<&str> = log.lines().filter(|line| line.contains(&secret)).take(3).collect();
        let told: Vec<String> = told.iter().map(|line| line.chars().take(300).collect()).collect();
        assert!(told.is_empty(), "the log tells the {name}: {told:#?}");
    }
    stand.leave().await;
}
