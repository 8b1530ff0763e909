from bench.measurement.markdown import markdown


def test_a_table_is_markdown_with_its_columns_aligned() -> None:
    assert markdown(["", "tok/s"], [["one", "7.5"], ["thirty", "1,234.0"]]) == (
        "|        |   tok/s |\n| ------ | ------: |\n| one    |     7.5 |\n| thirty | 1,234.0 |"
    )
