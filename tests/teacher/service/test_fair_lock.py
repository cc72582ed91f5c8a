"""The lock of a service is granted in turn."""

from __future__ import annotations

import threading

from labelwall.teacher.service.fair_lock import FairLock


def test_the_lock_is_granted_in_the_order_of_asking() -> None:
    """A thread that has just released the lock comes after all that wait."""
    lock, order, waiting = FairLock(), [], threading.Barrier(2)

    def busy() -> None:
        for number in range(3):
            with lock:
                if number == 0:
                    waiting.wait()
                    while lock._next_ticket < 2:
                        pass
                order.append(f"busy {number}")

    def patient() -> None:
        waiting.wait()
        with lock:
            order.append("patient")

    threads = [threading.Thread(target=work) for work in (busy, patient)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["busy 0", "patient", "busy 1", "busy 2"]
