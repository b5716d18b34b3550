//! The MIME archive in which AL2 and AL2023 take several parts of user data.

use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::raw::Raw;
use mail_builder::mime::{BodyPart, MimePart};
use mail_parser::{Header, Message, MessageParser, MessagePart, MimeHeaders};

use super::Error;

/// The content type of a shell script.
pub const SHELL: &str = "text/x-shellscript";
/// Beginnings by which cloud-init knows what user data is, in capitals or not, with the content type of each; of two alike the longer comes
/// first. It does not look for them in what is said to be a script, except in its later versions.
const BEGINNINGS: [(&str, &str); 8] = [
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config-jsonp", "text/cloud-config-jsonp"),
    ("#cloud-config", "text/cloud-config"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#include-once", "text/x-include-once-url"),
    ("#include", "text/x-include-url"),
    ("#part-handler", "text/part-handler"),
    ("## template: jinja", "text/jinja2"),
];
/// Headers of a part that are written anew.
const OWN_HEADERS: [&str; 3] = ["Content-Type", "Content-Transfer-Encoding", "MIME-Version"];
/// The boundary that nodeadm's documentation and Karpenter use; lengthened when a part contains it.
const BOUNDARY: &str = "//";

/// One part of the archive.
pub struct Part {
    /// Type and subtype, with what is said of them.
    content_type: ContentType<'static>,
    /// Further headers, such as cloud-init's `Merge-Type`.
    headers: Vec<(String, String)>,
    /// What it holds.
    content: Vec<u8>,
}

impl Part {
    /// Makes a part of text.
    pub fn text(content_type: &'static str, content: &str) -> Self {
        Self { content_type: ContentType::new(content_type), headers: Vec::new(), content: content.as_bytes().to_vec() }
    }

    fn written(self) -> MimePart<'static> {
        // nodeadm and cloud-init read text as it is: neither base64 nor soft line breaks. What is no text is written in base64.
        let encoding = match str::from_utf8(&self.content) {
            Ok(text) if text.is_ascii() => Some("7bit"),
            Ok(_) => Some("8bit"),
            Err(_) => None,
        };
        let part = MimePart::new(self.content_type, BodyPart::Binary(self.content.into()));
        let part = match encoding {
            Some(encoding) => part.transfer_encoding(encoding),
            None => part,
        };
        self.headers.into_iter().fold(part, |part, (name, value)| part.header(name, Raw::new(value)))
    }
}

/// Reads the node class's own user data: the parts of a MIME archive, or one part. That is of the type that `kind` tells, else what its
/// beginning tells cloud-init, else a script.
pub fn parts(custom: &str, kind: impl FnOnce(&str) -> Option<&'static str>) -> Result<Vec<Part>, Error> {
    let trimmed = custom.trim_start();
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    let start = trimmed.get(..13).unwrap_or_default();
    if start.eq_ignore_ascii_case("MIME-Version:") || start.eq_ignore_ascii_case("Content-Type:") {
        return unpack(trimmed);
    }
    let begins = |with: &str| trimmed.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    let told = || BEGINNINGS.iter().find(|(beginning, _)| begins(beginning)).map(|(_, kind)| *kind);
    Ok(vec![Part::text(kind(custom).or_else(told).unwrap_or(SHELL), custom)])
}

fn unpack(custom: &str) -> Result<Vec<Part>, Error> {
    let message = MessageParser::default().parse(custom.as_bytes()).ok_or(Error::NotMime)?;
    let multipart = message.parts.first().is_some_and(|root| root.sub_parts().is_some());
    let leaves = message.parts.iter().filter(|part| part.sub_parts().is_none());
    let parts: Vec<Part> = leaves
        .map(|part| Part {
            content_type: content_type(part),
            headers: further_headers(&message, part),
            content: part.contents().to_vec(),
        })
        .collect();
    if parts.is_empty() || !multipart { Err(Error::NotMime) } else { Ok(parts) }
}

fn content_type(part: &MessagePart<'_>) -> ContentType<'static> {
    let Some(told) = part.content_type() else { return ContentType::new("text/plain") };
    let named = ContentType::new(format!("{}/{}", told.ctype(), told.subtype().unwrap_or("plain")));
    // text is UTF-8 by now, whatever it was
    let kept = told.attributes().unwrap_or_default().iter().filter(|one| !one.name.eq_ignore_ascii_case("charset"));
    kept.fold(named, |kind, one| kind.attribute(one.name.to_string(), one.value.to_string()))
}

/// Returns the headers that are kept as they stand, each in one line.
fn further_headers(message: &Message<'_>, part: &MessagePart<'_>) -> Vec<(String, String)> {
    let is_own = |header: &Header<'_>| OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(header.name()));
    let value = |header: &Header<'_>| {
        let raw = message.raw_message.get(header.offset_start() as usize..header.offset_end() as usize)?;
        Some(String::from_utf8_lossy(raw).replace(['\r', '\n'], "").trim().to_owned())
    };
    let further = part.headers.iter().filter(|header| !is_own(header));
    further.filter_map(|header| Some((header.name().to_owned(), value(header)?))).collect()
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
    let body: Vec<MimePart<'_>> = parts.into_iter().map(Part::written).collect();
    let mixed = ContentType::new("multipart/mixed").attribute("boundary", boundary);
    let mut written = b"MIME-Version: 1.0\r\n".to_vec();
    MimePart::new(mixed, BodyPart::Multipart(body)).write_part(&mut written);
    written.retain(|byte| *byte != b'\r');
    String::from_utf8(written).map_err(|error| Error::Write(error.to_string()))
}
