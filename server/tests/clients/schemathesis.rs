//! Schemathesis reads the description of the API, sends thousands of requests that fit it or nearly do, and
//! checks every answer: no server errors, and nothing that the description does not cover.

use crate::stage::Stage;
use crate::{python, succeeded};
use std::path::Path;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_that_the_description_does_not_say() {
    let stage = Stage::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = python(Path::new("-m"));
    command.current_dir(&folder).args(["schemathesis.cli", "run", &format!("{}/openapi.json", stage.url)]);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
                  response_headers_conformance,response_schema_conformance";
    command.args([
        "--checks",
        checks,
        "--max-examples",
        "20",
        "--seed",
        "1",
        "--generation-database",
        "none",
    ]);
    let said = succeeded(command).await;
    assert!(said.contains("Tested: 63"), "every operation is asked:\n{said}");
    stage.stop().await;
}
