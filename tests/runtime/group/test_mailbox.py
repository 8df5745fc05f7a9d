from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raydist.runtime.group import mailbox as mailbox_module
from raydist.runtime.group.mailbox import Departed, Mailbox, News
from raydist.spec import Command, TaskId, TaskState, TaskStatus

W0, W1 = TaskId.parse("worker/0"), TaskId.parse("worker/1")


def status(task: TaskId, step: int, *, incarnation: int = 0) -> TaskStatus:
    return TaskStatus(task=task, state=TaskState.RUNNING, pid=1, host="h", step=step, incarnation=incarnation)


def run(scenario: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(scenario(Mailbox()), timeout=10)

    return asyncio.run(limited())


def test_news_is_the_newest_status_of_each_task() -> None:
    async def scenario(mailbox: Mailbox) -> News:
        for task, step in ((W0, 1), (W1, 1), (W0, 2)):
            await mailbox.exchange(status(task, step), wait_s=0)
        return await mailbox.wait_news(0, timeout_s=5)

    assert run(scenario) == News(seq=3, statuses=(status(W0, 2), status(W1, 1)))


def test_news_comes_once() -> None:
    async def scenario(mailbox: Mailbox) -> tuple[News, News]:
        await mailbox.exchange(status(W0, 1), wait_s=0)
        first = await mailbox.wait_news(0, timeout_s=5)
        await mailbox.exchange(status(W1, 7), wait_s=0)
        return first, await mailbox.wait_news(first.seq, timeout_s=5)

    assert run(scenario)[1] == News(seq=2, statuses=(status(W1, 7),))


def test_waiting_without_news_ends() -> None:
    assert run(lambda mailbox: mailbox.wait_news(0, timeout_s=0.01)) == News(seq=0)


def test_waiting_ends_with_the_first_news() -> None:
    async def scenario(mailbox: Mailbox) -> News:
        waiting = asyncio.create_task(mailbox.wait_news(0, timeout_s=60))
        await asyncio.sleep(0)
        await mailbox.exchange(status(W0, 3), wait_s=0)
        return await waiting

    assert run(scenario).statuses == (status(W0, 3),)


def test_progress_is_gathered_until_something_comes_that_the_run_acts_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox_module, "_GATHER_PROGRESS_S", 1000.0)

    async def scenario(mailbox: Mailbox) -> tuple[bool, News]:
        await mailbox.exchange(status(W0, 1), wait_s=0)
        first = await mailbox.wait_news(0, timeout_s=5)
        await mailbox.exchange(status(W0, 2), wait_s=0)
        waiting = asyncio.create_task(mailbox.wait_news(first.seq, timeout_s=5))
        await asyncio.wait({waiting}, timeout=0.3)
        is_told = waiting.done()
        await mailbox.exchange(replace(status(W0, 3), checkpoint="step-3-a0"), wait_s=0)
        return is_told, await waiting

    is_told, news = run(scenario)
    assert not is_told
    assert [(one.step, one.checkpoint) for one in news.statuses] == [(3, "step-3-a0")]


def test_order_wakes_the_exchange_that_waits_for_it() -> None:
    async def scenario(mailbox: Mailbox) -> tuple[Command, ...]:
        exchange = asyncio.create_task(mailbox.exchange(status(W0, 1), wait_s=60))
        await asyncio.sleep(0)
        await mailbox.command(Command.STOP, [W0])
        return await exchange

    assert run(scenario) == (Command.STOP,)


def test_orders_wait_for_their_task_and_are_handed_out_once() -> None:
    async def scenario(mailbox: Mailbox) -> list[tuple[Command, ...]]:
        await mailbox.command(Command.SAVE, [W0])
        await mailbox.command(Command.DUMP_STACKS, [W0])
        tasks = (W1, W0, W0)
        return [await mailbox.exchange(status(task, 1), wait_s=0.01) for task in tasks]

    assert run(scenario) == [(), (Command.SAVE, Command.DUMP_STACKS), ()]


def test_departures_are_waited_for_until_all_are_gone() -> None:
    async def scenario(mailbox: Mailbox) -> tuple[Departed, Departed]:
        await mailbox.depart(status(W1, 8))
        some = await mailbox.wait_departed([W0, W1], timeout_s=0.01)
        waiting = asyncio.create_task(mailbox.wait_departed([W0, W1], timeout_s=60))
        await asyncio.sleep(0)
        await mailbox.depart(status(W0, 9))
        return some, await waiting

    some, all_ = run(scenario)
    assert some == Departed(tasks=(W1,), statuses=(status(W1, 8),))
    assert all_ == Departed(tasks=(W0, W1), statuses=(status(W1, 8), status(W0, 9)))


def test_last_words_of_a_process_that_was_replaced_are_ignored() -> None:
    async def scenario(mailbox: Mailbox) -> News:
        await mailbox.exchange(status(W0, 1), wait_s=0)
        await mailbox.replace(W0, incarnation=1)
        await mailbox.exchange(status(W0, 2), wait_s=0)
        await mailbox.exchange(status(W1, 7), wait_s=0)
        return await mailbox.wait_news(0, timeout_s=5)

    assert run(scenario).statuses == (status(W1, 7),)


def test_waiting_call_of_a_dead_process_takes_no_order_of_the_next_one() -> None:
    async def scenario(mailbox: Mailbox) -> list[tuple[Command, ...]]:
        of_the_dead = asyncio.create_task(mailbox.exchange(status(W0, 1), wait_s=60))
        await asyncio.sleep(0)
        await mailbox.replace(W0, incarnation=1)
        await mailbox.command(Command.FINISH, [W0])
        return [await of_the_dead, await mailbox.exchange(status(W0, 0, incarnation=1), wait_s=0)]

    assert run(scenario) == [(), (Command.FINISH,)]


def test_orders_that_a_dead_process_did_not_take_are_forgotten() -> None:
    async def scenario(mailbox: Mailbox) -> tuple[Command, ...]:
        await mailbox.command(Command.SAVE, [W0])
        await mailbox.replace(W0, incarnation=1)
        return await mailbox.exchange(status(W0, 0, incarnation=1), wait_s=0.01)

    assert run(scenario) == ()


def test_process_that_took_the_place_is_known_also_to_a_mailbox_that_was_opened_later() -> None:
    async def scenario(mailbox: Mailbox) -> News:
        await mailbox.exchange(status(W0, 3, incarnation=1), wait_s=0)
        await mailbox.exchange(status(W0, 9), wait_s=0)
        return await mailbox.wait_news(0, timeout_s=5)

    assert run(scenario).statuses == (status(W0, 3, incarnation=1),)


def test_parcel_is_given_to_who_asked_before_it_came() -> None:
    async def scenario(mailbox: Mailbox) -> tuple[Any, Any]:
        missed = await mailbox.get_parcel("a", wait_s=0.01)
        waiting = asyncio.create_task(mailbox.get_parcel("a", wait_s=5))
        await asyncio.sleep(0)
        await mailbox.put_parcel("a", ["ref"])
        return missed, await waiting

    assert run(scenario) == (None, ["ref"])
