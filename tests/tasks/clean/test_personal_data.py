"""Personal data planted in sentences of several languages is found, and other numbers are left alone."""

import base64
import ipaddress
import random
import string
from collections import Counter, defaultdict

import numpy as np
import pytest
from stdnum import iso7064, luhn
from stdnum.br import cpf
from stdnum.cn import ric
from stdnum.de import idnr
from stdnum.es import dni
from stdnum.it import codicefiscale
from stdnum.pl import pesel
from stdnum.ru import inn

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.document import DocumentContext, Verdicts
from tasks.clean.edits.national_ids import mask_national_ids, passes_snils, passes_taiwan
from tasks.clean.edits.phones import mask_phones
from tasks.clean.edits.pii import mask_emails, mask_ibans
from tasks.clean.edits.secrets import entropy, is_secret, mask_secrets

PERSONAL = ("secret", "email", "iban", "payment_card", "national_id", "ip_address", "phone")
CHAIN = Chain.of(CleanConfig(edits=PERSONAL, rules=()), "gopher")
LEAST_FOUND, MOST_FALSE_ALARMS = 0.95, 0.01

SENTENCES = {
    "en": [
        "You can reach the office at {} during the week.",
        "Please send it to {} before Friday.",
        "Her details: {}.",
        "The form says {} and nothing else.",
        "We used {} for the booking, as agreed.",
    ],
    "de": ["Bitte verwenden Sie {} bis Freitag.", "Die Angaben lauten {}, wie vereinbart.", "Er nannte uns {}."],
    "fr": ["Vous pouvez utiliser {} pendant la semaine.", "Il nous a donné {} hier.", "Ses coordonnées : {}."],
    "it": ["Potete usare {} durante la settimana.", "Ci ha dato {} ieri.", "I suoi dati: {}."],
    "es": ["Puede usar {} durante la semana.", "Nos dio {} ayer.", "Sus datos: {}."],
    "ru": ["Используйте {} в рабочие дни.", "Он оставил нам {} вчера.", "Его данные: {}."],
    "zh": ["请使用{}完成登记。", "他昨天给了我们{}，请保存。", "资料如下：{}。", "张伟 {} 北京市"],
}


def digits(rng, count):
    return "".join(rng.choice(string.digits) for _ in range(count))


def letters(rng, count, alphabet=string.ascii_letters + string.digits):
    return "".join(rng.choice(alphabet) for _ in range(count))


def email(rng):
    local = rng.choice(
        ["jane.doe", "m.rossi", "info+news", "müller", "иван.петров", "user_name99", "j", "zhang.wei", "renée"]
    )
    domain = rng.choice(
        [
            "example.org",
            "mail.example.co.uk",
            "bücher.de",
            "почта.рф",
            "xn--80akhbyknj4f.com",
            "例子.中国",
            "uni-köln.de",
            "παράδειγμα.ελ",
            "firma.museum",
            "qq.com",
            "sub.mail.ru",
        ]
    )
    return f"{local}@{domain}", rng.choice(list(SENTENCES))


def _grouped(rng, text, forms):
    sizes, joint = rng.choice(forms)
    pieces, done = [], 0
    for size in sizes:
        pieces.append(text[done : done + size])
        done += size
    return joint.join(pieces)


def phone(rng):
    """A number with its country code, or as written in its country, in a sentence of its language."""
    kind = rng.randrange(10)
    if kind == 0:
        number = "1" + rng.choice(["38", "39", "58", "86", "77", "51"]) + digits(rng, 8)
        return _grouped(rng, number, [((11,), ""), ((3, 4, 4), " "), ((3, 4, 4), "-")]), "zh"
    if kind == 1:
        return f"+86 {rng.choice(['138', '159', '186'])} {digits(rng, 4)} {digits(rng, 4)}", rng.choice(["zh", "en"])
    if kind == 2:
        area, rest = rng.choice(["495", "812", "916", "903", "926"]), str(rng.randrange(2000000, 9999999))
        middle = f"{rest[:3]}-{rest[3:5]}-{rest[5:]}"
        return rng.choice(
            [f"8 ({area}) {middle}", f"+7 {area} {middle}", f"8-{area}-{middle}", f"+7{area}{rest}"]
        ), "ru"
    if kind == 3:
        rest = f"{rng.randrange(1000000, 9999999)}"
        return rng.choice([f"030 {rest}", f"+49 30 {rest}", f"0171 {rest}", f"0171/{rest}", f"(030) {rest}"]), "de"
    if kind == 4:
        pairs = " ".join(digits(rng, 2) for _ in range(4))
        return rng.choice([f"06 {pairs}", f"+33 6 {pairs}", f"06 {pairs}".replace(" ", "."), f"01 4{pairs[1:]}"]), "fr"
    if kind == 5:
        rest = digits(rng, 7)
        return rng.choice([f"+39 347 {rest}", f"347 {rest}", f"06 6{rest}", f"02 4{rest[:3]} {rest[3:]}"]), "it"
    if kind == 6:
        rest = digits(rng, 6)
        return rng.choice(
            [f"+34 612 {rest[:3]} {rest[3:]}", f"612 {rest[:3]} {rest[3:]}", f"91 4{rest[:2]} {rest[2:4]} {rest[4:]}"]
        ), "es"
    if kind == 7:
        rest = f"{rng.randrange(200, 999)}-{digits(rng, 4)}"
        return rng.choice([f"(212) {rest}", f"415-{rest}", f"+1 646-{rest}", f"1-800-{rest}"]), "en"
    if kind == 8:
        return rng.choice(
            [
                f"020 7946 0{digits(rng, 3)}",
                f"07{rng.choice('4579')}12 {digits(rng, 6)}",
                f"+44 20 7946 0{digits(rng, 3)}",
            ]
        ), "en"
    word = rng.choice(["tel. ", "phone: ", "电话：", "тел. ", "Tel.: ", "cell. "])
    number = rng.choice(
        [
            f"347{digits(rng, 7)}",
            f"138{digits(rng, 8)}",
            f"98{rng.randrange(10, 99)}{digits(rng, 6)}",
            f"0171{digits(rng, 7)}",
            f"612{digits(rng, 6)}",
        ]
    )
    return word + number, rng.choice(list(SENTENCES))


def iban(rng):
    country, shape = rng.choice(
        [
            ("DE", "n" * 18),
            ("GB", "aaaa" + "n" * 14),
            ("FR", "n" * 10 + "c" * 11 + "nn"),
            ("IT", "a" + "n" * 10 + "c" * 12),
            ("ES", "n" * 20),
            ("NL", "aaaa" + "n" * 10),
            ("PL", "n" * 24),
            ("CH", "n" * 5 + "c" * 12),
            ("BE", "n" * 12),
            ("AT", "n" * 16),
            ("SE", "n" * 20),
            ("NO", "n" * 11),
            ("PT", "n" * 21),
            ("SA", "nn" + "c" * 18),
        ]
    )
    of = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}
    body = "".join(rng.choice(of[kind]) for kind in shape)
    check = iso7064.mod_97_10.calc_check_digits(body + country)
    number = f"{country}{check}{body}"
    if rng.random() < 0.5:
        number = " ".join(number[place : place + 4] for place in range(0, len(number), 4))
    return rng.choice(["", "", "IBAN ", "IBAN: "]) + number, rng.choice(list(SENTENCES))


def payment_card(rng):
    prefix, size = rng.choice(
        [
            ("4", 16),
            ("51", 16),
            ("55", 16),
            ("2221", 16),
            ("37", 15),
            ("6011", 16),
            ("62", 16),
            ("2202", 16),
            ("3530", 16),
        ]
    )
    body = prefix + digits(rng, size - len(prefix) - 1)
    number = next(body + last for last in string.digits if luhn.is_valid(body + last))
    forms = [((15,), ""), ((4, 6, 5), " ")] if size == 15 else [((16,), ""), ((4, 4, 4, 4), " "), ((4, 4, 4, 4), "-")]
    return _grouped(rng, number, forms), rng.choice(list(SENTENCES))


def ip_address(rng):
    while True:
        version6 = rng.random() < 0.3
        address = (
            str(ipaddress.IPv6Address((0x2A00 << 112) + rng.getrandbits(96)))
            if version6
            else ".".join(str(rng.randrange(1, 255)) for _ in range(4))
        )
        if ipaddress.ip_address(address).is_global and (
            version6 or any(int(part) >= 20 for part in address.split("."))
        ):
            return address, rng.choice(list(SENTENCES))


def secret(rng):
    token = letters(rng, 48)
    value = rng.choice(
        [
            lambda: "AKIA" + letters(rng, 16, string.ascii_uppercase + "234567"),
            lambda: rng.choice(["ghp_", "gho_"]) + letters(rng, 36),
            lambda: "github_pat_" + letters(rng, 22) + "_" + letters(rng, 59),
            lambda: f"xoxb-{digits(rng, 12)}-{digits(rng, 12)}-{letters(rng, 24)}",
            lambda: rng.choice(["sk-", "sk-proj-", "sk-ant-api03-"]) + token,
            lambda: "AIza" + letters(rng, 35),
            lambda: _jwt(rng),
            lambda: "glpat-" + letters(rng, 20),
            lambda: "sk_live_" + letters(rng, 24),
            lambda: (
                "-----BEGIN RSA PRIVATE KEY-----\n"
                f"{letters(rng, 64)}\n{letters(rng, 64)}\n-----END RSA PRIVATE KEY-----"
            ),
            lambda: f"password={letters(rng, 12)}7a!",
            lambda: f'api_key: "{letters(rng, 32, "0123456789abcdef")}a1"',
            lambda: f"DB_PASSWORD='{letters(rng, 10)}$4x'",
            lambda: f"пароль: {letters(rng, 10)}-9k",
            lambda: f"密码：{letters(rng, 10)}#3z",
            lambda: f"secret_access_key = {letters(rng, 40)}",
        ]
    )()
    return value, rng.choice(list(SENTENCES))


def _jwt(rng):
    def part(raw):
        return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")

    header, body = part('{"alg":"HS256","typ":"JWT"}'), part('{"sub":"' + digits(rng, 10) + '","name":"J"}')
    return f"{header}.{body}.{letters(rng, 43)}"


def national_id(rng):
    kind = rng.randrange(9)
    if kind == 0:
        body = f"110101{rng.randrange(1950, 2005)}{rng.randrange(1, 13):02}{rng.randrange(1, 29):02}{digits(rng, 3)}"
        return body + ric.calc_check_digit(body + "0"), "zh"
    if kind == 1:
        body = (
            letters(rng, 6, "BCDFGLMNPRSTV")
            + f"{rng.randrange(100):02}{rng.choice('ABCDEHLMPRST')}{rng.randrange(1, 29):02}H501"
        )
        return body + codicefiscale.calc_check_digit(body), "it"
    if kind == 2:
        body = digits(rng, 9)
        number = next(f"{body}{last:02}" for last in range(100) if passes_snils(f"{body}{last:02}"))
        return f"{number[:3]}-{number[3:6]}-{number[6:9]} {number[9:]}", "ru"
    if kind == 3:
        body = digits(rng, 10)
        return "ИНН " + body + inn.calc_personal_check_digits(body), "ru"
    if kind == 4:
        return (
            f"{rng.choice(['SSN', 'social security number'])} "
            f"{rng.randrange(100, 665)}-{rng.randrange(10, 99)}-{rng.randrange(1000, 9999)}",
            "en",
        )
    if kind == 5:
        body = f"{rng.randrange(10**7, 10**8)}"
        return rng.choice(["", "DNI "]) + body + dni.calc_check_digit(body), "es"
    if kind == 6:
        number = digits(rng, 9)
        number = next(number + f"{last:02}" for last in range(100) if cpf.is_valid(number + f"{last:02}"))
        return f"{number[:3]}.{number[3:6]}.{number[6:9]}-{number[9:]}", "es"
    if kind == 7:
        while not idnr.is_valid(number := _german_number(rng)):
            pass
        return f"Steuer-ID {number}", "de"
    body = f"{rng.randrange(50, 99)}{rng.randrange(1, 13):02}{rng.randrange(1, 29):02}{digits(rng, 4)}"
    return f"PESEL {body}{pesel.calc_check_digit(body)}", "en"


def _german_number(rng):
    chosen = rng.sample(string.digits, 9)
    body = [*chosen, chosen[0]]
    rng.shuffle(body)
    return "".join(body) + iso7064.mod_11_10.calc_check_digit("".join(body))


PLANTED = {make.__name__: make for make in (email, phone, iban, payment_card, ip_address, secret, national_id)}


def other_number(rng):
    """A kind and a number or the like that is no personal data."""
    year, month, day = rng.randrange(1700, 2030), rng.randrange(1, 13), rng.randrange(1, 29)
    isbn = "978" + digits(rng, 9)
    kinds = {
        "date": [
            f"{year}-{month:02}-{day:02}",
            f"{day:02}.{month:02}.{year}",
            f"{month}/{day}/{year}",
            f"{year}年{month}月{day}日",
            f"{year}-{month:02}-{day:02}T{day:02}:{month:02}:30Z",
            f"{year}{month:02}{day:02}",
        ],
        "years": [f"{year}-{year + 4}", f"{year}–{year + 11}", f"({year}-{year + 40})", f"{year} - {year + 7}"],
        "isbn": [
            f"ISBN {isbn}0",
            f"ISBN 978-3-{digits(rng, 2)}-{digits(rng, 6)}-{digits(rng, 1)}",
            f"ISBN 0-{digits(rng, 3)}-{digits(rng, 5)}-X",
            f"ISSN {digits(rng, 4)}-{digits(rng, 4)}",
        ],
        "price": [
            f"${rng.randrange(10**6):,}.{digits(rng, 2)}",
            f"{rng.randrange(1, 999)} {digits(rng, 3)} {digits(rng, 3)} руб",
            f"{rng.randrange(1, 99)}.{digits(rng, 3)}.{digits(rng, 3)},00 €",
            f"¥{digits(rng, 9)}",
        ],
        "version": [
            f"v{rng.randrange(20)}.{rng.randrange(30)}.{rng.randrange(400)}",
            f"version {rng.randrange(200)}.0.{rng.randrange(9999)}.{rng.randrange(200)}",
            f"numpy=={rng.randrange(3)}.{rng.randrange(30)}.{rng.randrange(9)}",
            f"build {digits(rng, 8)}",
            f"section 3.{rng.randrange(9)}.{rng.randrange(9)}.{rng.randrange(9)}",
        ],
        "hash": [
            letters(rng, 32, "0123456789abcdef"),
            f"commit {letters(rng, 40, '0123456789abcdef')}",
            letters(rng, 64, "0123456789abcdef"),
            "-".join(letters(rng, size, "0123456789abcdef") for size in (8, 4, 4, 4, 12)),
            f"#{letters(rng, 6, '0123456789abcdef')}",
        ],
        "order": [
            f"order {digits(rng, 10)}",
            f"invoice no. {digits(rng, 8)}",
            f"订单号 {digits(rng, 16)}",
            f"заказ № {digits(rng, 9)}",
            f"Bestellnummer {digits(rng, 11)}",
            f"ticket #{digits(rng, 8)}",
            f"tracking {digits(rng, 16)}",
        ],
        "coordinates": [
            f"{rng.uniform(-90, 90):.6f}, {rng.uniform(-180, 180):.6f}",
            f"{rng.randrange(90)}°{rng.randrange(60)}'{rng.randrange(60)}\"N",
            f"({rng.uniform(0, 90):.4f}; {rng.uniform(0, 180):.4f})",
        ],
        "formula": [
            f"$x = {rng.random() * 1000:.8f}$",
            rf"$1.{digits(rng, 8)} \times 10^{{{rng.randrange(40)}}}$",
            rf"\frac{{{digits(rng, 9)}}}{{{digits(rng, 10)}}}",
            f"{rng.random():.12f}",
            f"3.{digits(rng, 16)}e-{rng.randrange(10, 30)}",
        ],
        "large": [
            f"{rng.randrange(10**9, 10**11):,}",
            digits(rng, 9),
            digits(rng, 10),
            digits(rng, 12),
            digits(rng, 20),
            f"{rng.randrange(1, 99)} {digits(rng, 3)} {digits(rng, 3)}",
            f"0x{letters(rng, 8, '0123456789abcdef')}",
            str(rng.randrange(1_500_000_000, 1_800_000_000)),
        ],
        "table": [
            " ".join(digits(rng, rng.randrange(1, 4)) for _ in range(12)),
            " ".join(str(rng.randrange(100)) for _ in range(6)),
            "  ".join(f"{rng.random() * 100:.2f}" for _ in range(5)),
            f"{digits(rng, 4)} {digits(rng, 4)} {digits(rng, 4)}",
        ],
        "test vector": [
            " ".join(letters(rng, 2, "0123456789abcdef") for _ in range(16)),
            ":".join(letters(rng, 2, "0123456789abcdef") for _ in range(6)),
            f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{digits(rng, 6)}",
            f"10.{digits(rng, 4)}/{letters(rng, 4)}.{year}.{digits(rng, 6)}",
            f"arXiv:{digits(rng, 4)}.{digits(rng, 5)}",
            f"127.0.0.1:{digits(rng, 4)}",
            "192.168.1.17",
        ],
        "words": [
            "password: your_password",
            'password = os.environ["DB_PASSWORD"]',
            "api_key=<YOUR_API_KEY>",
            "token = tokenizer.next_token(text)",
            "the secret: nobody knew it",
            "key=value1234",
            "git@github.com:a/b.git",
            "@dataclass",
            "sk-learn-based-classification-of-text",
            "password: ********",
        ],
    }
    kind = rng.choice(list(kinds))
    return kind, rng.choice(kinds[kind])


def masked(items):
    """Return texts after the edits of personal data; items are (text, language)."""
    texts = Texts.of([text for text, _ in items])
    count = len(items)
    contexts = BatchContext(["text"] * count, [language for _, language in items], ["s"] * count, [""] * count, "keep")
    CHAIN.clean_many(texts, contexts, np.arange(count), Verdicts(count))
    return [texts.text(row) for row in range(count)]


def measure(each, others):
    """Return the shares found by kind of data and of false alarms by kind of number, and examples of both mistakes."""
    rng = random.Random(7)
    found, missed = {}, defaultdict(list)
    for name, make in PLANTED.items():
        values = [make(rng) for _ in range(each)]
        items = [(rng.choice(SENTENCES[language]).format(value), language) for value, language in values]
        for (value, language), (text, _), after in zip(values, items, masked(items), strict=True):
            if f"<{name}>" not in after or value in after:
                missed[name].append((language, text, after))
        found[name] = 1 - len(missed[name]) / each
    numbers = [other_number(rng) for _ in range(others)]
    languages = [rng.choice(list(SENTENCES)) for _ in numbers]
    items = [
        (rng.choice(SENTENCES[language]).format(number), language)
        for (_, number), language in zip(numbers, languages, strict=True)
    ]
    alarms, wrong, totals = Counter(), [], Counter(kind for kind, _ in numbers)
    for (kind, _), (text, _), after in zip(numbers, items, masked(items), strict=True):
        if text != after:
            alarms[kind] += 1
            wrong.append((kind, text, after))
    lines = [f"{name:14} found {share:7.2%}  of {each}" for name, share in found.items()]
    lines += [f"{kind:14} false {alarms[kind] / total:7.2%}  of {total}" for kind, total in totals.items()]
    print("\n".join(("", *lines, f"{'all':14} false {len(wrong) / others:7.2%}  of {others}")))
    return found, missed, len(wrong) / others, wrong


@pytest.mark.parametrize(
    ("each", "others"), [(120, 400), pytest.param(2000, 10_000, marks=pytest.mark.prove_data)], ids=["few", "many"]
)
def test_planted_data_is_found_and_other_numbers_are_kept(each, others):
    found, missed, false_alarms, wrong = measure(each, others)
    for name, share in found.items():
        assert share >= LEAST_FOUND, missed[name][:20]
    assert false_alarms <= MOST_FALSE_ALARMS, wrong[:40]


def text_in(language):
    return DocumentContext("text", language)


@pytest.mark.parametrize(
    ("language", "before", "after"),
    [
        ("zh", "我的手机号是13812345678，请回电", "我的手机号是<phone>，请回电"),
        ("zh", "联系 138 1234 5678 或 010-12345678", "联系 <phone> 或 <phone>"),
        (None, "138 1234 5678", "138 1234 5678"),
        ("zh", "订单 13812345678901，编号13812345678", "订单 13812345678901，编号13812345678"),
        ("ru", "Тел.: 8 (495) 123-45-67 доб. 12, моб. 89161234567", "Тел.: <phone> доб. 12, моб. <phone>"),
        ("fr", "au 01.23.45.67.89", "au <phone>"),
        ("de", "Telefon (0 30) 1234567", "Telefon <phone>"),
        ("de", "aus dem Ausland 0044 20 7946 0958", "aus dem Ausland <phone>"),
        ("it", "chiamami al 3471234567", "chiamami al <phone>"),
        ("en", "pp. 13522-13537, 1999-2003, ISSN 1234-5678", "pp. 13522-13537, 1999-2003, ISSN 1234-5678"),
        ("en", "(3.28 - 3.27851533) and 0 2021-08-09 02:11", "(3.28 - 3.27851533) and 0 2021-08-09 02:11"),
        ("en", "Boston, MA  02110-1301, USA", "Boston, MA  02110-1301, USA"),
        ("en", "* Boston, MA\n *  02110-1301, USA", "* Boston, MA\n *  02110-1301, USA"),
        ("en", "Clause 252.227-7013 (c) of DFARs", "Clause 252.227-7013 (c) of DFARs"),
        ("es", "612 345 678", "<phone>"),
        ("en", "612 345 678", "612 345 678"),
    ],
)
def test_a_number_without_a_country_code_needs_its_language_or_a_word(language, before, after):
    assert mask_phones(before, text_in(language)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("联系我zhang@example.com联系我", "联系我<email>联系我"),
        ("müller@bücher.de, почта@пример.рф; 张三@例子.中国。", "<email>, <email>; <email>。"),
        ("a @b c@ d@e git@github.com:a/b", "a @b c@ d@e git@github.com:a/b"),
        ("ion.popescu@mail.md juan@3m.com.py ali@hormuud.SO", "<email> <email> <email>"),
        ("icon@2x.png icon@2x.py lib@1.2.so", "icon@2x.png icon@2x.py lib@1.2.so"),
    ],
)
def test_names_and_domains_of_any_script(before, after):
    assert mask_emails(before, text_in(None)) == after


@pytest.mark.parametrize(
    ("format", "before", "after"),
    [
        ("code", "y = q@k.transpose(0, 1) + a@b.shape[0]", "y = q@k.transpose(0, 1) + a@b.shape[0]"),
        ("code", 'this@MainActivity.finish("a@example.org")', 'this@MainActivity.finish("<email>")'),
        ("text", "super@Outer.open, jane@example.org(home)", "super@Outer.open, <email>(home)"),
    ],
)
def test_products_of_matrices_and_labels_in_code_are_no_addresses(format, before, after):
    assert mask_emails(before, DocumentContext(format=format)) == after


def test_an_iban_ends_before_the_next_word():
    text = "IBAN: DE89 3704 0044 0532 0130 00 BIC COBADEFF, GB82WEST12345698765432. DE88 3704 0044 0532 0130 00"
    # 97 divides only numbers with the right check digits: DE88 is wrong.
    expected = "IBAN: <iban> BIC COBADEFF, <iban>. DE88 3704 0044 0532 0130 00"
    assert mask_ibans(text, text_in("en")) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"password": "Tr0ub4dor&3x"}', '{"password": "<secret>"}'),
        ("mysql://root:hunter2!@db.example.org/x", "mysql://<secret>@db.example.org/x"),
        (f"https://bob:ghp_{'aB3' * 12}@git.example.org/x", "https://bob:<secret>@git.example.org/x"),
        (f"https://bob:ghp_{'aB3' * 12}.more@git.example.org/x", "https://bob:<secret>@git.example.org/x"),
        ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY0", "export AWS_SECRET_ACCESS_KEY=<secret>"),
        ("key AKIAIOSFODNN7EXAMPLE.", "key <secret>."),
        (f'HF_TOKEN="hf_{"aQzRtM" * 5}WxYz"', 'HF_TOKEN="<secret>"'),
        (f"shpat_{'0a1f' * 8}, rubygems_{'0a1f' * 12}.", "<secret>, <secret>."),
        (f"by pul-{'0a1f9' * 8}", "by <secret>"),
        *(
            (word, word)
            for word in (
                f"hf_{'x' * 34} hf_{'AbCd' * 8}",
                f"hf_{'aQzRtM' * 5}WxYz_size my_hf_{'aQzRtM' * 5}WxYz",
                "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",
                f"pul-{'0a1f9' * 7} shpat_{'0a1g' * 8} rubygems_{'0a1f' * 11}",
            )
        ),
        ("password = get_password(1)", "password = get_password(1)"),
        ("password: your_password1, token=3.42ms/tok", "password: your_password1, token=3.42ms/tok"),
        ("monkey = 12345678abcD!", "monkey = 12345678abcD!"),
        ("(tokens == start_id1).nonzero(0)[0]", "(tokens == start_id1).nonzero(0)[0]"),
        ("token = next_tok_2, api_key=key_of_row1", "token = next_tok_2, api_key=key_of_row1"),
        ("token = 'next_tok_2' password = next_tok_2", "token = '<secret>' password = <secret>"),
        ("password == 'Tr0ub4dor&3x'", "password == '<secret>'"),
    ],
)
def test_secrets_and_what_only_looks_like_them(before, after):
    assert mask_secrets(before, text_in("en")) == after
    assert masked([(before, "en")]) == [after]


def test_entropy_in_bits():
    assert entropy("aaaa") == 0
    assert entropy("abab") == 1
    assert entropy("abcd" * 3) == 2
    assert not is_secret("abcdefgh")
    assert is_secret("aB3$eF7hQ")


def test_check_digits_of_ids():
    # SNILS 112-233-445: 1*9 + 1*8 + 2*7 + 2*6 + 3*5 + 3*4 + 4*3 + 4*2 + 5*1 = 95
    assert passes_snils("112-233-445 95")
    assert not passes_snils("112-233-445 96")
    # A is 10: 1*1 + 0*9 + 1*8 + 2*7 + 3*6 + 4*5 + 5*4 + 6*3 + 7*2 + 8*1 = 121, and 9 makes 130
    assert passes_taiwan("A123456789")
    assert not passes_taiwan("A123456788")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SSN 536-90-4399", "SSN <national_id>"),
        ("part 536-90-4399", "part 536-90-4399"),
        ("CF RSSMRA85T10A562S!", "CF <national_id>!"),
        ("身份证11010519491231002X。", "身份证<national_id>。"),
        ("身份证110105194912310021。", "身份证110105194912310021。"),
    ],
)
def test_ids_need_right_check_digits_or_a_word(before, after):
    assert mask_national_ids(before, text_in("en")) == after


def test_a_number_of_a_county_that_never_existed_is_no_id():
    """python-stdnum raises KeyError where the province exists and the check digit is right."""
    body = "35999919501203921"
    text = f"身份证{body}{ric.calc_check_digit(body + '0')}。"
    assert mask_national_ids(text, text_in("zh")) == text
