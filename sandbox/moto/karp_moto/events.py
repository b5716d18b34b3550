"""EventBridge's envelope as AWS writes it, with the account, which moto leaves out; and without the JSONPath package, which it wants for it."""

from moto.events.utils import EventTemplateParser

FIELDS = ("version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail")


def install(world):
    original = EventTemplateParser.parse

    def parse(input_template, input_paths_map, event):
        if input_template or input_paths_map:
            return original(input_template, input_paths_map, event)
        return {field: event[field] for field in FIELDS}  # moto writes the time of a message for SQS in ISO 8601 later

    EventTemplateParser.parse = staticmethod(parse)
