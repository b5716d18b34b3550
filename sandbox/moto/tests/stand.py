"""One overlay process for a test module, boto3 clients for it, and its admin door."""

import json
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import boto3
from botocore.config import Config

HOME = Path(__file__).resolve().parent.parent
STARTS_WITHIN_SECONDS = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Stand(unittest.TestCase):
    arguments = []

    @classmethod
    def setUpClass(cls):
        cls.port = free_port()
        cls.url = f"http://127.0.0.1:{cls.port}"
        cls.process = subprocess.Popen([sys.executable, "-m", "karp_moto", "--port", str(cls.port), *cls.arguments], cwd=HOME,
                                       stdout=subprocess.DEVNULL)
        cls.addClassCleanup(cls.stop)
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                cls.seed = cls.get("seed")
                return
            except (urllib.error.URLError, ConnectionError):
                if cls.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    @classmethod
    def stop(cls):
        cls.process.terminate()
        cls.process.wait(10)

    @classmethod
    def client(cls, service, **options):
        return boto3.client(service, endpoint_url=cls.url, region_name="us-east-1", aws_access_key_id="sandbox",
                            aws_secret_access_key="sandbox", config=Config(retries={"total_max_attempts": 1}, **options))

    @classmethod
    def get(cls, name):
        with urllib.request.urlopen(f"{cls.url}/_karp/{name}", timeout=20) as answer:
            return json.load(answer)

    @classmethod
    def post(cls, name, body):
        request = urllib.request.Request(f"{cls.url}/_karp/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def eventually(self, probe, seconds=10):
        deadline = time.monotonic() + seconds
        while not (value := probe()):
            self.assertLess(time.monotonic(), deadline, "it did not happen in time")
            time.sleep(0.05)
        return value

    def refused(self, code, call, **params):
        from botocore.exceptions import ClientError

        with self.assertRaises(ClientError) as raised:
            call(**params)
        self.assertEqual(raised.exception.response["Error"]["Code"], code)
