"""Skills that are not the right answer: a large library around the labelled ones, the same each time.

Names and descriptions are put together from tables, in English, Chinese and Japanese as public libraries mix them. They
share their subjects with the labelled skills (PDF files, contracts, tests, travel), but do something else with them.
"""

import itertools
import random
from collections.abc import Iterator

from deepskills._catalog.search import SearchDocument

ENGLISH_TASKS = {
    "archiver": "Archives {thing} of {place} by year and owner, with retention rules and an index. Use when storage "
    "fills up or someone asks for an old one.",
    "approval-flow": "Walks {thing} through approval at {place}: collects sign-offs, reminds whoever is late and keeps "
    "a record of each decision.",
    "cost-estimator": "Estimates what {thing} cost {place}, from hours and licences to vendors, and shows where money "
    "can be saved. Use before a budget round.",
    "naming-guide": "Names {thing} by the conventions of {place}, spots those that break them and suggests new names "
    "in bulk.",
    "onboarding": "Explains to newcomers at {place} how {thing} are handled: who owns what, which tools, where to ask. "
    "Ends with a short quiz.",
    "quality-check": "Checks {thing} of {place} against a list of twenty points and grades each. Use before handing "
    "them over to a client.",
    "deduplicator": "Finds near-identical {thing} across the systems of {place} and proposes which to keep.",
    "migration": "Moves {thing} of {place} from the old system to the new one in batches, verifies counts and keeps a "
    "way back.",
    "status-digest": "Sends a daily digest on {thing} at {place}: what is new, what waits, what is overdue.",
    "access-review": "Reviews who can see and change {thing} at {place}, removes stale permissions and documents the "
    "exceptions.",
    "tagger": "Labels {thing} of {place} with topics, language and sensitivity so that they can be filtered later.",
    "handover": "Prepares the handover of {thing} when somebody leaves {place}: open points, contacts, deadlines.",
}
ENGLISH_THINGS = (
    "PDF brochures", "purchase orders", "payroll runs", "patient records", "Jira boards", "Kafka topics",
    "Redis clusters", "React components", "Android builds", "S3 buckets", "newsletter campaigns", "tax filings",
    "press releases", "training videos", "sales calls", "Postgres replicas", "GraphQL schemas", "feature flags",
    "delivery routes", "lab samples", "insurance claims", "Excel templates", "SQL views", "Docker registries",
    "Terraform modules", "GitHub repositories", "Python notebooks", "customer interviews", "travel bookings",
    "hotel reviews", "supplier invoices", "lease contracts", "job adverts", "exam papers", "product photos",
    "support macros", "chat logs", "calendar invitations", "meeting rooms", "email templates", "survey panels",
    "CSV feeds", "API tokens", "test environments", "release trains", "incident pagers", "slide masters",
    "spreadsheet macros", "translation memories", "blog comments", "dashboard alerts", "experiment flags",
    "forecast models", "scanned maps", "bank transfers", "loyalty cards", "recipe cards", "weather stations",
    "spare parts", "volunteer shifts", "library loans", "museum exhibits", "podcast episodes", "court filings",
)  # fmt: skip
ENGLISH_PLACES = (
    "hospitals", "law firms", "universities", "small shops", "city councils", "software teams", "banks", "charities",
    "factories", "airlines", "game studios", "publishers", "farms", "hotels",
)  # fmt: skip

CHINESE_TASKS = {
    "归档": "把{place}的{thing}按年份和负责人归档，设置保留期限并建立目录，存储空间不足或需要查找旧资料时使用。",
    "审批流程": "跟进{place}{thing}的审批：收集签批意见，提醒逾期的人，并保留每一步的记录。",
    "费用估算": "估算{place}在{thing}上的人力、授权和外包费用，指出可以节省的地方，做预算之前使用。",
    "命名规范": "按照{place}的规范为{thing}命名，找出不符合要求的名称并批量给出新名称。",
    "新人指南": "向{place}的新人说明{thing}由谁负责、用什么工具、遇到困难找谁，最后附一个小测验。",
    "质量检查": "对照二十项标准检查{place}的{thing}并逐项评分，交付之前使用。",
    "每日摘要": "每天汇总{place}的{thing}：新增的、等待的和逾期的，发送到群里。",
    "权限复核": "复核{place}里谁能查看和修改{thing}，清理过期权限并登记例外。",
    "交接清单": "有人离开{place}时准备{thing}的交接：未完成的事项、联系人和期限。",
}
CHINESE_THINGS = (
    "采购订单", "工资表", "病历", "宣传册", "培训视频", "销售电话", "数据库副本", "接口文档", "快递路线", "保险理赔",
    "合同模板", "考试试卷", "商品图片", "聊天记录", "会议室", "问卷", "测试环境", "发布计划", "旅行订单", "会员卡",
)  # fmt: skip
CHINESE_PLACES = ("医院", "律师事务所", "大学", "小店", "软件团队", "银行", "工厂")

JAPANESE_TASKS = {
    "保管": "{place}の{thing}を年度と担当者ごとに保管し、保存期間を管理して目録を作ります。古いものを探すときに。",
    "承認フロー": "{place}での{thing}の承認を進めます。決裁を集め、遅れている人に知らせ、判断の記録を残します。",
    "費用見積": "{place}が{thing}にかける工数、ライセンス、外注費を見積もり、節約できる点を示します。",
    "命名ガイド": "{place}の規則に沿って{thing}に名前を付け、合わないものを見つけて一括で候補を出します。",
    "新人案内": "{place}に入った人に{thing}の扱い方、使う道具、相談先を説明し、最後に小テストをします。",
    "品質点検": "{place}の{thing}を二十の項目で点検し、それぞれを評価します。納品の前に使います。",
    "日次まとめ": "{place}の{thing}について、新しいもの、待ちのもの、期限切れのものを毎日知らせます。",
    "権限見直し": "{place}で{thing}を見られる人と変更できる人を見直し、不要な権限を外します。",
    "引き継ぎ": "{place}を離れる人の{thing}の引き継ぎを準備します。未完了の件、連絡先、期限をまとめます。",
}
JAPANESE_THINGS = (
    "発注書", "給与明細", "カルテ", "パンフレット", "研修動画", "営業電話", "データベース", "仕様書の版", "配送ルート",
    "保険請求", "契約書の雛形", "試験問題", "商品写真", "チャット履歴", "会議室", "アンケート", "テスト環境",
    "リリース計画", "旅行予約", "会員カード",
)  # fmt: skip
JAPANESE_PLACES = ("病院", "法律事務所", "大学", "商店", "開発チーム", "銀行", "工場")


def distractors(count: int) -> list[SearchDocument]:
    """Return `count` skills, drawn from all combinations in an order that is the same each time."""
    made = [*_english(), *_joined(CHINESE_TASKS, CHINESE_THINGS, CHINESE_PLACES)]
    made += _joined(JAPANESE_TASKS, JAPANESE_THINGS, JAPANESE_PLACES)
    random.Random(17).shuffle(made)  # noqa: S311 - an order, not a secret
    if count > len(made):
        raise ValueError(f"there are {len(made)} distractors, not {count}")
    return made[:count]


def _english() -> Iterator[SearchDocument]:
    for (task, text), thing, place in itertools.product(ENGLISH_TASKS.items(), ENGLISH_THINGS, ENGLISH_PLACES):
        name = f"{thing}-{task}-{place}".lower().replace(" ", "-")
        yield SearchDocument(name, text.format(thing=thing, place=place), thing.lower())


def _joined(tasks: dict[str, str], things: tuple[str, ...], places: tuple[str, ...]) -> Iterator[SearchDocument]:
    for (task, text), thing, place in itertools.product(tasks.items(), things, places):
        yield SearchDocument(f"{place}{thing}{task}", text.format(thing=thing, place=place))
