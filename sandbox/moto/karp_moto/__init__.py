"""karp's AWS for the sandbox: moto 5.2.5 in one process, with what moto lacks laid over it.

One WSGI gate (`gate`) stands before moto. It reads each call, writes it to a log, applies the faults that a test asked for, answers
what moto does not implement, and passes the rest on. `/_karp/...` (module `admin`) is the tests' door: it is no AWS.
"""
