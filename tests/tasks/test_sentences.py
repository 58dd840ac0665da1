"""A line of several sentences is parted where a reader would part it."""

import pytest

from transduce.tasks.translate import sentences


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said: "Come in." "Why?" she asked.', ['He said: "Come in."', '"Why?" she asked.']),
        ("Vier Hunde ... und eine Katze.  Über uns?", ["Vier Hunde ... und eine Katze.", "Über uns?"]),
        ("at 3.5 km (see p. 7). Then", ["at 3.5 km (see p.", "7).", "Then"]),
        ("¿Qué? ¡Nada! «Oui.» Non", ["¿Qué?", "¡Nada!", "«Oui.»", "Non"]),
        ("这是一。那是二！好", ["这是一。", "那是二！", "好"]),
        ("यह एक है। क्या यह दो है? हाँ।", ["यह एक है।", "क्या यह दो है?", "हाँ।"]),
        ("هل هذا واحد؟ نعم.", ["هل هذا واحد؟", "نعم."]),
        ("یہ ایک ہے۔ یہ دو ہے۔", ["یہ ایک ہے۔", "یہ دو ہے۔"]),
        ("Մեկ։ Երկու։", ["Մեկ։", "Երկու։"]),
        ("አንድ ነው። ሁለት ነው።", ["አንድ ነው።", "ሁለት ነው።"]),
        ("Да. нет. Да", ["Да. нет.", "Да"]),
        ("no end", ["no end"]),
        ("  ", []),
    ],
)
def test_sentences_end_at_marks_unless_lower_case_follows(line, want):
    assert sentences(line) == want


def test_splitting_loses_only_spaces():
    line = 'A b. C d? "E!" (f.) G...  H。I'
    assert "".join(sentences(line)).replace(" ", "") == line.replace(" ", "")
