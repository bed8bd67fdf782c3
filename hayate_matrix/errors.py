"""Every way to fail, and what happens next.

HayateError                      problem, allowed, remedy; a stable code
├── StopError                    stop: the program ends with `exit_code` and a sentence for the operator
│   ├── SettingsError            settings that can't be used, all faults at once            exit 78
│   ├── AccountError             the account can't be used (logged out, another device)     exit 78
│   ├── HomeBusyError            another process owns the home or the store                 exit 75
│   ├── StoreError               a database that can't be opened, is newer or is damaged    exit 74
│   └── EncryptionError          encryption can't work as it was asked for                  exit 78
├── WaitError                    wait: nothing is wrong with the work, try again later
│   ├── HomeserverDown           no answer, a server error, or a page that is no Matrix answer
│   ├── RateLimited              the server named a time to wait
│   └── DiskLow                  nothing is taken that can't be kept
├── YieldError                   yield: this row waits, others go on
│   ├── DeliveryHeld             the room is denied, or the bot may not speak in it
│   └── DeliveryUncertain        it can't be known whether it was sent; the operator decides
└── GiveUpError                  give up: this piece of work ends
    ├── DeliveryRefused          the homeserver will never take it
    ├── MatrixError              the homeserver answered with a Matrix error code
    ├── InputError               what a person, a model or a program sent can't be used
    ├── StaleTransition          a row was no longer in the state that the change expects
    └── TurnFailed               the runtime could not answer; one sentence to the room
"""

from __future__ import annotations


class HayateError(Exception):
    """The root: `problem` says what is wrong, `allowed` what would be right, `remedy` what to do.

    The text that `str` gives is for the operator. `code` is stable, for programs.
    """

    code = "error"

    def __init__(self, problem: str, *, allowed: str = "", remedy: str = "", code: str | None = None) -> None:
        self.problem = problem
        self.allowed = allowed
        self.remedy = remedy
        if code is not None:
            self.code = code
        super().__init__(" ".join(part for part in (problem, allowed, remedy) if part))


class StopError(HayateError):
    """Stop: the command line prints the text and exits with `exit_code` (numbers of BSD's sysexits.h)."""

    code = "stop"
    exit_code = 70


class SettingsError(StopError):
    """Settings that can't be used; the text lists every fault."""

    code = "settings"
    exit_code = 78


class AccountError(StopError):
    """The account can't be used: logged out, another device, another user."""

    code = "account"
    exit_code = 78


class HomeBusyError(StopError):
    """Another process owns the home or a store; the text says which."""

    code = "home-busy"
    exit_code = 75


class StoreError(StopError):
    """A database that can't be opened, is newer than the program or is damaged; nothing was overwritten."""

    code = "store"
    exit_code = 74


class EncryptionError(StopError):
    """Encryption can't work as it was asked for, so nothing is sent."""

    code = "encryption"
    exit_code = 78


class WaitError(HayateError):
    """Wait: try the same again later; `wait_s` is what the other side asked for, if it did."""

    code = "wait"

    def __init__(self, problem: str, *, wait_s: float | None = None, allowed: str = "", remedy: str = "") -> None:
        self.wait_s = wait_s
        super().__init__(problem, allowed=allowed, remedy=remedy)


class HomeserverDown(WaitError):
    """No answer, a server error, or a page that is no Matrix answer."""

    code = "homeserver-down"


class RateLimited(WaitError):
    """The server answered 429; `wait_s` holds the time that it named."""

    code = "rate-limited"


class DiskLow(WaitError):
    """The disk is nearly full: nothing is taken that can't be kept (STO-11)."""

    code = "disk-low"


class YieldError(HayateError):
    """Yield: this row waits, others go on."""

    code = "yield"


class DeliveryHeld(YieldError):
    """The room is denied, or the bot may not speak in it: the delivery is kept."""

    code = "delivery-held"


class DeliveryUncertain(YieldError):
    """It can't be known whether the delivery was sent: the operator decides."""

    code = "delivery-uncertain"


class GiveUpError(HayateError):
    """Give up: this piece of work ends, the rest goes on."""

    code = "give-up"


class DeliveryRefused(GiveUpError):
    """The homeserver will never take this delivery."""

    code = "delivery-refused"


class MatrixError(GiveUpError):
    """The homeserver answered with a Matrix error code (`errcode`) and an HTTP status."""

    code = "matrix"

    def __init__(self, errcode: str, text: str, *, status: int, body: dict[str, object] | None = None) -> None:
        self.errcode = errcode
        self.status = status
        self.body = body or {}
        super().__init__(f"The homeserver answered {status} {errcode}: {text}")


class InputError(GiveUpError):
    """What a person, a model or a program sent can't be used; the text names the field and the limit."""

    code = "input"


class StaleTransition(GiveUpError):
    """A row was no longer in the state that the change expects; somebody else moved it, nothing was changed."""

    code = "stale"


class TurnFailed(GiveUpError):
    """The runtime could not answer; `problem` is the sentence for the room."""

    code = "turn-failed"
