"""The situations the stories are told about.

Placeholders of a question and of a step's sentence: ``{name}``, ``{she}``/``{She}``, ``{her}`` (one
person), ``{friend}`` (another), ``{things}`` and ``{others}`` (two kinds of plural nouns), every
number of the template by its name and, in a step's sentence, ``{equation}`` ("3 * 4 = 12").
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a solution: `result` is the name that its value gets."""

    result: str
    expression: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Template:
    """One situation: what is drawn, how it is asked (paraphrases) and how it is solved."""

    numbers: dict[str, range]
    questions: tuple[str, ...]
    steps: tuple[Step, ...]


def ask(*paraphrases: str) -> tuple[str, ...]:
    """Several ways to ask for the same thing."""
    return paraphrases


FEW, SOME, MANY = range(2, 13), range(3, 41), range(10, 100)
LOTS, DIVISOR = range(100, 600), range(2, 10)

TEMPLATES = (
    Template(
        {"boxes": FEW, "each": SOME, "given": MANY},
        ask(
            "{name} buys {boxes} boxes of {things}. Each box holds {each} {things}. {She} gives "
            "{given} {things} to {friend}. How many {things} does {name} have left?",
            "There are {each} {things} in a box and {name} buys {boxes} boxes. If {she} gives "
            "{friend} {given} of the {things}, how many remain?",
        ),
        (
            Step("total", "boxes * each", "The {boxes} boxes hold {equation} {things}."),
            Step("left", "total - given", "After the gift {name} has {equation} {things} left."),
        ),
    ),
    Template(
        {"pay": range(5, 61), "days": FEW, "spent": MANY, "gift": range(5, 51)},
        ask(
            "{name} earns {pay} dollars a day and works for {days} days. {She} spends {spent} "
            "dollars on {things} and then gets {gift} dollars from {friend}. How many dollars does "
            "{she} have?",
            "For {days} days {name} earns {pay} dollars each day. Then {she} buys {things} for "
            "{spent} dollars, and {friend} gives {name} {gift} dollars. How much money does "
            "{name} have now?",
        ),
        (
            Step("earned", "days * pay", "In {days} days {name} earns {equation} dollars."),
            Step("rest", "earned - spent", "After buying {things} {she} has {equation} dollars."),
            Step("now", "rest + gift", "With the gift {she} has {equation} dollars."),
        ),
    ),
    Template(
        {"rows": FEW, "seats": SOME, "extra": MANY, "rooms": DIVISOR},
        ask(
            "A hall has {rows} rows of {seats} chairs. Workers bring {extra} more chairs and then "
            "share all chairs equally among {rooms} rooms. How many chairs does a room get?",
            "{name} counts {rows} rows with {seats} chairs each, and {extra} chairs are added. All "
            "the chairs go to {rooms} rooms in equal parts. How many chairs are in each room?",
        ),
        (
            Step("first", "rows * seats", "The rows have {equation} chairs."),
            Step("all", "first + extra", "With the new ones there are {equation} chairs."),
            Step("share", "all / rooms", "Each room gets {equation} chairs."),
        ),
    ),
    Template(
        {"trays": FEW, "each": SOME, "sold": MANY, "pack": DIVISOR},
        ask(
            "{name} bakes {trays} trays of {each} rolls. {She} sells {sold} rolls and packs the "
            "rest into bags of {pack}. How many bags does {she} fill?",
            "A baker called {name} bakes {each} rolls on each of {trays} trays, sells {sold} of "
            "them, and puts the others into bags with {pack} rolls each. How many bags are there?",
        ),
        (
            Step("baked", "trays * each", "{name} bakes {equation} rolls."),
            Step("left", "baked - sold", "After the sale {equation} rolls are left."),
            Step("bags", "left / pack", "They fill {equation} bags."),
        ),
    ),
    Template(
        {"pages": LOTS, "first": MANY},
        ask(
            "{name} reads a book of {pages} pages. On Monday {she} reads {first} pages, and on "
            "Tuesday twice as many. How many pages are left?",
            "A book has {pages} pages. {name} reads {first} pages on Monday and two times that "
            "number on Tuesday. How many pages does {she} still have to read?",
        ),
        (
            Step("second", "2 * first", "On Tuesday {name} reads {equation} pages."),
            Step("read", "first + second", "Together that is {equation} pages."),
            Step("left", "pages - read", "So {equation} pages are left."),
        ),
    ),
    Template(
        {"rows": FEW, "a": SOME, "beds": FEW, "b": SOME},
        ask(
            "{name} plants {rows} rows of {a} {things} and {beds} rows of {b} {others}. How many "
            "does {she} plant in total?",
            "In the garden {name} sets out {rows} rows with {a} {things} each. {friend} sets out "
            "{beds} rows with {b} {others} each. How many are there altogether?",
        ),
        (
            Step("one", "rows * a", "There are {equation} {things}."),
            Step("two", "beds * b", "There are {equation} {others}."),
            Step("sum", "one + two", "In total that makes {equation}."),
        ),
    ),
    Template(
        {"speed": range(20, 96), "hours": DIVISOR, "more": MANY, "way": range(200, 1000)},
        ask(
            "{name} has to drive {way} km. {She} drives {hours} hours at {speed} km an hour and "
            "then {more} km more. How many km are left?",
            "The way to {friend} is {way} km long. {name} goes {speed} km an hour for {hours} "
            "hours, rests, and goes {more} km. How far is it still?",
        ),
        (
            Step("first", "hours * speed", "In {hours} hours {name} drives {equation} km."),
            Step("done", "first + more", "After the second part it is {equation} km."),
            Step("left", "way - done", "So {equation} km are left."),
        ),
    ),
    Template(
        {"own": SOME, "times": DIVISOR},
        ask(
            "{name} has {own} {things}. {friend} has {times} times as many. How many {things} do "
            "they have together?",
            "{friend} has {times} times as many {things} as {name}, who has {own}. How many "
            "{things} are there in all?",
            "If {name} owns {own} {things} and {friend} owns {times} times that number, how many "
            "{things} do both own?",
        ),
        (
            Step("theirs", "times * own", "{friend} has {equation} {things}."),
            Step("sum", "own + theirs", "Together they have {equation} {things}."),
        ),
    ),
    Template(
        {"adults": FEW, "full": range(5, 31), "kids": FEW, "half": range(3, 21), "bill": LOTS},
        ask(
            "A ticket costs {full} dollars for adults and {half} dollars for children. {name} buys "
            "tickets for {adults} adults and {kids} children and pays with {bill} dollars. How "
            "many dollars does {she} get back?",
            "{name} pays for {adults} adults at {full} dollars each and {kids} children at {half} "
            "dollars each. {She} hands over {bill} dollars. How much change is there?",
        ),
        (
            Step("one", "adults * full", "The adults cost {equation} dollars."),
            Step("two", "kids * half", "The children cost {equation} dollars."),
            Step("cost", "one + two", "Together that is {equation} dollars."),
            Step("change", "bill - cost", "{name} gets {equation} dollars back."),
        ),
    ),
    Template(
        {"age": range(4, 31), "older": range(2, 21), "times": range(2, 5)},
        ask(
            "{name} is {age} years old. {friend} is {older} years older, and {her} teacher is "
            "{times} times as old as {name}. How old are {friend} and the teacher together?",
            "{friend} is {older} years older than {name}, who is {age}. A teacher is {times} times "
            "as old as {name}. What is the sum of the ages of {friend} and the teacher?",
        ),
        (
            Step("other", "age + older", "{friend} is {equation} years old."),
            Step("teacher", "times * age", "The teacher is {equation} years old."),
            Step("sum", "other + teacher", "The sum is {equation} years."),
        ),
    ),
    Template(
        {"rate": range(10, 81), "hours": FEW, "bad": range(3, 60), "pack": DIVISOR},
        ask(
            "A machine makes {rate} {things} an hour and runs for {hours} hours. {bad} of the "
            "{things} are broken. The good ones are packed in boxes of {pack}. How many boxes "
            "are needed?",
            "{name} runs a machine for {hours} hours. It makes {rate} {things} every hour, but "
            "{bad} are bad. {name} puts {pack} good {things} in each box. How many boxes are full?",
        ),
        (
            Step("made", "hours * rate", "The machine makes {equation} {things}."),
            Step("good", "made - bad", "Of these {equation} are good."),
            Step("boxes", "good / pack", "They need {equation} boxes."),
        ),
    ),
    Template(
        {"start": MANY, "found": MANY, "lost": range(5, 61), "times": range(2, 5)},
        ask(
            "{name} collects {things}. {She} has {start}, finds {found} more and loses {lost}. "
            "{friend} has {times} times as many as {name} now. How many {things} does {friend} "
            "have?",
            "At first {name} has {start} {things}. {She} finds {found} and then loses {lost}. If "
            "{friend} has {times} times as many as that, how many {things} does {friend} have?",
        ),
        (
            Step("more", "start + found", "{name} first gets to {equation} {things}."),
            Step("now", "more - lost", "After the loss {she} has {equation} {things}."),
            Step("theirs", "times * now", "{friend} has {equation} {things}."),
        ),
    ),
    Template(
        {"start": MANY, "rate": SOME, "minutes": FEW, "used": MANY},
        ask(
            "A tank holds {start} litres of water. A pump adds {rate} litres a minute for "
            "{minutes} minutes. Then {name} uses {used} litres. How many litres are in the tank?",
            "{name} pumps water for {minutes} minutes, {rate} litres each minute, into a tank that "
            "had {start} litres. {friend} takes out {used} litres. How much water is left?",
        ),
        (
            Step("added", "minutes * rate", "The pump adds {equation} litres."),
            Step("full", "start + added", "The tank then has {equation} litres."),
            Step("left", "full - used", "In the end it has {equation} litres."),
        ),
    ),
    Template(
        {"wins": FEW, "win": range(3, 31), "draws": FEW, "draw": range(2, 16), "fine": MANY},
        ask(
            "A team gets {win} points for a win and {draw} points for a draw. It has {wins} wins "
            "and {draws} draws, and loses {fine} points for fouls. How many points does it have?",
            "{name} plays a game with {wins} wins of {win} points and {draws} draws of {draw} "
            "points. {fine} points are taken away. What is the score?",
        ),
        (
            Step("one", "wins * win", "The wins give {equation} points."),
            Step("two", "draws * draw", "The draws give {equation} points."),
            Step("sum", "one + two", "Together that is {equation} points."),
            Step("score", "sum - fine", "The final score is {equation} points."),
        ),
    ),
    Template(
        {"length": LOTS, "used": MANY, "parts": DIVISOR},
        ask(
            "{name} has a rope of {length} cm. {She} uses {used} cm and cuts the rest into {parts} "
            "equal parts. How many cm long is a part?",
            "From a rope of {length} cm {name} cuts off {used} cm. The rest is divided into "
            "{parts} equal parts. How long is each part?",
        ),
        (
            Step("rest", "length - used", "The rest is {equation} cm long."),
            Step("part", "rest / parts", "Each part is {equation} cm long."),
        ),
    ),
    Template(
        {"hens": SOME, "eggs": DIVISOR, "eaten": range(2, 41), "price": range(2, 5)},
        ask(
            "{name} keeps {hens} hens that lay {eggs} eggs each in a week. {She} eats {eaten} eggs "
            "and sells the others for {price} dollars each. How many dollars does {she} earn?",
            "Each of the {hens} hens of {name} lays {eggs} eggs. The family eats {eaten} eggs and "
            "sells the rest at {price} dollars an egg. How much money does the family get?",
        ),
        (
            Step("laid", "hens * eggs", "The hens lay {equation} eggs."),
            Step("sold", "laid - eaten", "There are {equation} eggs to sell."),
            Step("money", "sold * price", "They bring {equation} dollars."),
        ),
    ),
    Template(
        {"shelves": FEW, "each": range(10, 61), "lent": MANY, "back": range(5, 51)},
        ask(
            "A library has {shelves} shelves with {each} books each. {lent} books are lent and "
            "{back} of them come back. How many books are in the library?",
            "{name} looks after {shelves} shelves of {each} books. Readers take {lent} books and "
            "bring {back} back. How many books does {name} have?",
        ),
        (
            Step("all", "shelves * each", "The shelves hold {equation} books."),
            Step("rest", "all - lent", "After lending there are {equation} books."),
            Step("now", "rest + back", "After the return there are {equation} books."),
        ),
    ),
    Template(
        {"pizzas": FEW, "price": range(6, 31), "drinks": MANY, "friends": DIVISOR},
        ask(
            "{name} orders {pizzas} pizzas for {price} dollars each and drinks for {drinks} "
            "dollars. {friends} people share the cost equally. How many dollars does each pay?",
            "{friends} people share a meal of {pizzas} pizzas at {price} dollars each and drinks "
            "for {drinks} dollars. If all pay the same, how much does {name} pay?",
        ),
        (
            Step("food", "pizzas * price", "The pizzas cost {equation} dollars."),
            Step("bill", "food + drinks", "With the drinks the bill is {equation} dollars."),
            Step("share", "bill / friends", "Each person pays {equation} dollars."),
        ),
    ),
)
