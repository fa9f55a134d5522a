"""A deterministic corpus of lines that tokenizers find hard: scripts, code, emoji, digits, odd whitespace, specials.

It only makes text; which readers must agree on it, and where they may not, is in `test_tokenizer`.
"""

import hashlib
import json
from collections.abc import Callable, Sequence


def _listed(text: str) -> list[str]:
    return text.split()


ENGLISH = _listed(
    """
    the of and to in is that it was for on are with as his they at be this from have or by one had not but what
    all were when we there can an your which their said if do will each about how up out them then she many some
    so these would other into has more her two like him see time could no make than first been its who now people
    my made over did down only way find use may water long little very after words called just where most know
    river engine Zürich naïve café résumé co-operate e-mail O'Neill rock'n'roll tokenization internationalization
    antidisestablishmentarianism
    """
)
CHINESE = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后"
    "多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合"
    "还因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只"
    "没结解问意建月公无系军很情者最立代想已通并提直题党程展五果料象员革位入常文总次品式活设及管特件长求老头基资边"
    "流路级少图山统接知较将组见计别她手角期根论运农指几九区强放决西被干做必战先回则任取据处队南给色光门即保治北造"
    "百规热领七海口东导器压志世金增争济阶油思术极交受联什认六共权收证改清己美再采转更单风切打白教速花带安场身车例"
    "真务具万每目至达走积示议声报斗完类八离华名确才科张信马节话米整空元况今集温传土许步群广石记需段研界拉林律叫且"
    "究观越织装影算低持音众书布复容儿须际商非验连断深难近矿千周委素技备半办青省列习响约支般史感劳便团往酸历市克何"
    "除消构府称太准精值号率族维划选标写存候毛亲快效斯院查江型眼王按格养易置派层片始却专状育厂京识适属圆包火住调满"
    "县局照参红细引听该铁价严"
)
JAPANESE = _listed(
    """
    これは テスト です 日本語の 文章を トークン に 分割する 、 。 カタカナ ひらがな 漢字 東京タワー ｶﾀｶﾅ
    々 ー 「はい」 食べました ありがとうございます
    """
)
KOREAN = _listed(
    """
    안녕하세요 한국어 문장 입니다 토큰 나는 학교에 갔다 감사합니다 서울특별시
    """
)
ARABIC = _listed(
    """
    مرحبا بالعالم هذا اختبار للغة العربية السَّلَامُ عَلَيْكُم ٠١٢٣ كتاب ، ؟ ﷺ فارسی می‌خواهم
    """
)
HINDI = _listed(
    """
    नमस्ते दुनिया यह एक परीक्षण है हिन्दी वाक्य । १२३ क्षत्रिय श्रीमान् ज़िन्दगी किताबें
    """
)
CYRILLIC = _listed(
    """
    Привет мир это проверка токенизатора ёлка подъезд Київ їжак СССР ДляМодели й и\u0306
    """
)
OTHER = _listed(
    """
    ภาษาไทย ไม่มีช่องว่าง Ελληνικά λόγος עברית שָׁלוֹם Tiếng தமிழ் বাংলা ქართული አማርኛ ខ្មែរ Türkçe
    İstanbul ıçğü Straße ǅ ﬁne ﬀ ½ Ⅷ ² ① 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𒀀𒀁 𐐷 Việt Vie\u0323\u0302t Å A\u030a \u212b
    """
)
EMOJI = _listed(
    """
    😀 🎉 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇭 ❤️ 🧑🏿‍🚀 ☃ ✈️ 1️⃣ 🫠 👁️‍🗨️ 🤷‍♀️ ⚡ 🀄 🅰
    """
)
SPACES = [
    " ",
    "  ",
    "   ",
    "    ",
    "        ",
    "\t",
    "\t\t",
    " \t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u2028",
    "\u0085",
    "\x0b",
    "\x0c",
    "\ufeff",
    "\u202f",
    " \n ",
    "\n  ",
    "\x1c",
    "\u180e",
]
SPECIALS = _listed(
    """
    <|im_start|> <|im_end|> <|endoftext|> <repo_name> <file_sep> <empty_output> <jupyter_code>
    <|im_start| |im_end|> <s> </s> <unk> <|eot_id|> <|begin_of_text|> [INST] <0x0A> <think>
    """
)
CONTRACTIONS = [
    "don't",
    "I'll",
    "we're",
    "they've",
    "it's",
    "I'm",
    "he'd",
    "DON'T",
    "I'LL",
    "WE'RE",
    "'tis",
    "y'all'd've",
    "'s",
    "' s",
    "'S",
    "don’t",
    "O'Reilly's",
    "'ſ",
    "'lla",
]
PUNCTUATION = _listed(
    r"""
    ... !!! ?! -- — … ( ) [] {} :: -> => != === // /* */ # $ € £ % && || ^ ~ ` ``` \ \n " “” „ «» 、 · •
    § ¶ ° ± × ÷ _ __ @ < > + |
    """
)
CODE = [
    "def f(x: int) -> int:\n    return x ** 2 + 1\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    'fn main() { println!("{:?}", vec![1u8, 0xFF, 1_000]); }',
    "SELECT id, COUNT(*) FROM users WHERE name LIKE '%o''neil%' GROUP BY 1;",
    "const f = async ({a, ...rest}) => `${a}-${JSON.stringify(rest)}`;",
    "<div class=\"row\"><a href='https://example.org/?q=1&amp;p=2'>x</a></div>",
    'if [[ -z "${VAR:-}" ]]; then echo $((1+2)) >&2; fi',
    "public static void main(String[] args) throws IOException {}",
    "\\frac{\\partial u}{\\partial t} = \\alpha \\nabla^2 u",
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println(3.14e-10)\n}\n',
    '{"key": [1, 2.5, null, true], "nested": {"a": "\\u00e9"}}',
    "    return self.__class__.__name__\n\n\n\n    # TODO: x\n",
    "main :: IO ()\nmain = mapM_ print $ takeWhile (<100) $ filter even [1..]",
    "#include <stdio.h>\r\n#define MAX(a,b) ((a)>(b)?(a):(b))\r\n",
    "key:\n  - item1\n  -   item2: 'x'\n\n\t- bad\n",
    "x<-c(1,2,NA);y%in%x;x[!is.na(x)]|>sum()",
]


class Dice:
    """A small linear congruential generator: the same rolls on every Python."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def pick(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def some(self, choices: Sequence[str], at_most: int, joint: str = " ") -> str:
        return joint.join(self.pick(choices) for _ in range(1 + self.below(at_most)))


def lines() -> list[str]:
    """Over 2,000 lines, always the same."""
    dice = Dice(2024)
    everyday = [_english, _chinese, _japanese, _words, _emoji, _digits, _contractions, _spaced, _special, _mixed, _code]
    made = [make(dice) for _ in range(190) for make in everyday]
    made += [_random_unicode(dice) for _ in range(300)]
    made += [
        *CODE,
        *SPACES,
        *SPECIALS,
        *EMOJI,
        *PUNCTUATION,
        *CONTRACTIONS,
        "",
        " ",
        "a",
        " a",
        "a ",
        "0",
        "\x00",
        "\x7f",
    ]
    return made


def sample() -> list[str]:
    """Every fourth line."""
    return lines()[::4]


def checksum(corpus: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(corpus)).encode()).hexdigest()


def _english(dice: Dice) -> str:
    text = dice.some(ENGLISH, 30)
    dressed: list[Callable[[str], str]] = [
        str,
        str.upper,
        str.title,
        str.capitalize,
        lambda t: f"  {t}",
        lambda t: t + ". ",
    ]
    return dressed[dice.below(len(dressed))](text)


def _chinese(dice: Dice) -> str:
    return dice.some(CHINESE, 30, "") + dice.pick(["。", "，", "！", "", " ", "3年"]) + dice.some(CHINESE, 10, "")


def _japanese(dice: Dice) -> str:
    return dice.some(JAPANESE, 10, "") + dice.pick(["", " "]) + dice.some(KOREAN, 6)


def _words(dice: Dice) -> str:
    script = [ARABIC, HINDI, CYRILLIC, OTHER][dice.below(4)]
    return dice.some(script, 12, dice.pick([" ", " ", "", "-", "  "]))


def _emoji(dice: Dice) -> str:
    return dice.some(EMOJI + ENGLISH[:20], 8, dice.pick(["", " "]))


def _digits(dice: Dice) -> str:
    number = "".join(str(dice.below(10)) for _ in range(1 + dice.below(15)))
    forms = [
        number,
        f" {number}",
        f"{number[:2]}.{number}",
        f"${number},{number[:3]}",
        f"v{number}-rc{number[:1]}",
        f"{number} {number}",
    ]
    return dice.pick(forms) + dice.pick(["", "%", "th", " km", "٣٤", "½", "²"])


def _contractions(dice: Dice) -> str:
    return dice.some(CONTRACTIONS + ENGLISH[:30], 12)


def _spaced(dice: Dice) -> str:
    return (
        dice.pick(SPACES)
        + dice.some(ENGLISH[:40], 6, dice.pick(SPACES))
        + dice.some(SPACES, 3, "")
        + dice.pick(["x", ""])
    )


def _special(dice: Dice) -> str:
    return dice.some(SPECIALS + ENGLISH[:10] + SPACES[:12], 8, dice.pick(["", " "]))


def _mixed(dice: Dice) -> str:
    everything = (
        ENGLISH + JAPANESE + ARABIC + HINDI + CYRILLIC + OTHER + EMOJI + PUNCTUATION * 3 + SPACES + CONTRACTIONS
    )
    return dice.some(everything, 20, dice.pick(["", "", " "]))


def _code(dice: Dice) -> str:
    whole = dice.pick(CODE)
    start = dice.below(len(whole))
    return whole[start:] + dice.pick(SPACES) + dice.pick(CODE)[: 1 + dice.below(60)]


def _random_unicode(dice: Dice) -> str:
    ceilings = [0x80, 0x250, 0x800, 0x3000, 0xD800, 0x20000, 0x110000]
    points = [dice.below(ceilings[dice.below(len(ceilings))]) for _ in range(1 + dice.below(20))]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
