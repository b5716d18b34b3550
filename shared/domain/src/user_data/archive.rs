//! The MIME archive in which AL2 and AL2023 take several parts of user data.

use mail_builder::headers::content_type::ContentType;
use mail_builder::mime::{BodyPart, MimePart};
use mail_parser::{MessageParser, MimeHeaders};

use super::Error;

/// The content type of a shell script.
pub const SHELL: &str = "text/x-shellscript";
/// The boundary that nodeadm's documentation and Karpenter use; lengthened when a part contains it.
const BOUNDARY: &str = "//";

/// One part of the archive.
pub struct Part {
    /// Type and subtype.
    pub content_type: String,
    /// What it holds.
    pub content: Vec<u8>,
}

impl Part {
    /// Makes a part of text.
    pub fn text(content_type: &str, content: &str) -> Self {
        Self { content_type: content_type.to_owned(), content: content.as_bytes().to_vec() }
    }
}

/// Reads the node class's own user data: the parts of a MIME archive, or one part of the type that `kind` tells.
pub fn parts(custom: &str, kind: impl FnOnce(&str) -> &'static str) -> Result<Vec<Part>, Error> {
    let trimmed = custom.trim_start();
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    let start = trimmed.get(..13).unwrap_or_default();
    if start.eq_ignore_ascii_case("MIME-Version:") || start.eq_ignore_ascii_case("Content-Type:") {
        return unpack(trimmed);
    }
    Ok(vec![Part::text(kind(custom), custom)])
}

fn unpack(custom: &str) -> Result<Vec<Part>, Error> {
    let message = MessageParser::default().parse(custom.as_bytes()).ok_or(Error::NotMime)?;
    let multipart = message.parts.first().is_some_and(|root| root.sub_parts().is_some());
    let leaves = message.parts.iter().filter(|part| part.sub_parts().is_none());
    let parts: Vec<Part> = leaves
        .map(|part| {
            let content_type = part.content_type().map_or_else(
                || "text/plain".to_owned(),
                |kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("plain")),
            );
            Part { content_type, content: part.contents().to_vec() }
        })
        .collect();
    if parts.is_empty() || !multipart { Err(Error::NotMime) } else { Ok(parts) }
}

/// Writes the archive, without carriage returns: bash would take those in a script for part of its words.
pub fn write(parts: Vec<Part>) -> Result<String, Error> {
    let mut boundary = BOUNDARY.to_owned();
    let holds = |part: &Part, boundary: &str| {
        part.content.windows(boundary.len() + 2).any(|at| at.starts_with(b"--") && at.ends_with(boundary.as_bytes()))
    };
    while parts.iter().any(|part| holds(part, &boundary)) {
        boundary.push_str("karp");
    }
    let body: Vec<MimePart<'_>> = parts
        .into_iter()
        .map(|part| {
            // nodeadm and cloud-init read parts as they are: neither base64 nor soft line breaks.
            let encoding = if part.content.is_ascii() { "7bit" } else { "8bit" };
            let content = BodyPart::Binary(part.content.into());
            MimePart::new(ContentType::new(part.content_type), content).transfer_encoding(encoding)
        })
        .collect();
    let mixed = ContentType::new("multipart/mixed").attribute("boundary", boundary);
    let mut written = b"MIME-Version: 1.0\r\n".to_vec();
    MimePart::new(mixed, BodyPart::Multipart(body)).write_part(&mut written);
    written.retain(|byte| *byte != b'\r');
    String::from_utf8(written).map_err(|error| Error::Write(error.to_string()))
}
