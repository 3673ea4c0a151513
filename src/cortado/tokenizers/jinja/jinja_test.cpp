#include "cortado/tokenizers/jinja/jinja.h"

#include <gtest/gtest.h>

#include "cortado/testing/errors.h"

namespace cortado::jinja {
namespace {

std::string rendered(const std::string& source, const Json& given = Json::object()) {
  return Template(source).render(given, Json::object(), 0).bytes();
}

std::string refused(const std::string& source, const Json& given = Json::object()) {
  return cortado::testing::error_of([&] { rendered(source, given); });
}

TEST(Jinja, WhiteSpace) {
  EXPECT_EQ(rendered("a \n {%- if true -%} \n b {%- endif %}\nc\n"),
            "ab"
            "c");
  EXPECT_EQ(rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc"), "a\n  b\nc");
  EXPECT_EQ(rendered("a {%+ if true %}b{% endif +%}\nc"), "a b\nc");
  EXPECT_EQ(rendered("{{ 'a' -}} \n b {# no #}\n c\r\nd\r\n"), "ab  c\nd");
  EXPECT_EQ(rendered("{% raw %}{{ a }}{% endraw %}"), "{{ a }}");
}

TEST(Jinja, Expressions) {
  EXPECT_EQ(rendered("{{ 1 + 2 * 3 ** 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1e3 }} {{ 0.1 + 0.2 }}"),
            "19 -4 2 3.5 1000.0 0.30000000000000004");
  EXPECT_EQ(rendered("{{ 'a' ~ 1 ~ none }} {{ not 1 > 2 and 2 in [1, 2] }} {{ 1 < 2 < 3 }} {{ 'x' if false }}"),
            "a1None True True ");
  EXPECT_EQ(rendered("{{ 'äbc'[1:] }}{{ 'äbc'[-1] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][:-1] }}{{ (1,) }}"),
            "bcccba[1, 2](1,)");
  EXPECT_EQ(
      rendered(
          "{{ {'a': 1, 'items': 2}.items() | list }}{{ {'items': 2}['items'] }}{{ [{'k': [true, none, \"it's\"]}] }}"),
      "[('a', 1), ('items', 2)]2[{'k': [True, None, \"it's\"]}]");
  EXPECT_EQ(rendered("{{ '%s-%03d' % ('a', 7) }} {{ '{} {x}'.format(1, x='y') }} {{ 'a\\u00e9\\n' | tojson }}"),
            "a-007 1 y \"aé\\n\"");
}

TEST(Jinja, Statements) {
  EXPECT_EQ(
      rendered("{% for a, b in [(1, 2), (3, 4)] if a > 1 %}{{ loop.index }}{{ loop.last }}{{ a }}{{ b }}{% endfor %}"),
      "1True34");
  EXPECT_EQ(rendered("{% for x in [] %}{% else %}none{% endfor %}{% for x in 'abc' %}{% if x == 'b' %}{% break %}{% "
                     "endif %}{{ x }}{% endfor %}"),
            "nonea");
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}"
                     "{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}"),
            "12");
  EXPECT_EQ(rendered("{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m(1) }}{% "
                     "call m(2, b=3) %}!{% endcall %}"),
            "1x23!");
  EXPECT_EQ(rendered("{% set t | upper %}a{% endset %}{{ t }}{% filter upper %}b{% endfilter %}{% generation %}c{% "
                     "endgeneration %}"),
            "ABc");
}

TEST(Jinja, FiltersAndTests) {
  const Json people = {{"p", Json::array({{{"n", "b"}, {"a", 2}}, {{"n", "A"}, {"a", 1}}})}};
  EXPECT_EQ(rendered("{{ p | map(attribute='n') | join('+') }} {{ p | selectattr('a', 'gt', 1) | list | length }} "
                     "{{ (p | sort(attribute='n') | first).a }} {{ p | sum('a') }} {{ {'b': 1, 'a': 2} | dictsort }}",
                     people),
            "b+A 1 1 3 [('a', 2), ('b', 1)]");
  EXPECT_EQ(
      rendered(
          "{{ x | default('d') }}{{ none | default('d', true) }}{{ '  a ' | trim }}{{ 'ab' | replace('b', 'c') }}"),
      "ddaac");
  EXPECT_EQ(rendered("{{ x is defined }}{{ 1 is number }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ "
                     "3 is odd }}"),
            "FalseTrueTrueTrueTrueTrue");
  EXPECT_EQ(rendered("{{ 'a\nb' | indent(2) }}|{{ [3, 1] | max }}|{{ '4.5' | float | round | int }}|{{ 'x' | upper }}"),
            "a\n  b|3|4|X");
}

TEST(Jinja, RefusesWhatPythonRefuses) {
  EXPECT_EQ(refused("{{ raise_exception('no\nno') }}"), "no no");
  EXPECT_NE(refused("{{ a.b }}").find("'a' is undefined"), std::string::npos);
  EXPECT_NE(refused("{{ 'a' + 1 }}").find("unsupported operand"), std::string::npos);
  EXPECT_NE(refused("{% set x = [] %}{{ x.append(1) }}").find("unsafe"), std::string::npos);
  EXPECT_NE(refused("{{ x | nonsense }}").find("nonsense"), std::string::npos);
  EXPECT_NE(refused("\n{% if %}").find("line 2"), std::string::npos);
  for (const char* broken :
       {"{{", "{%", "{#", "{% for", "{{ ( }}", "{{ a[ }}", "{% if x %}", "{{ 'a }}", "{% raw %}", "{% endif %}",
        "{{ a | }}", "{{ {'a' }}", "{% macro %}", "{{ 99999999999999999999 }}", "{{ 1 is }}"}) {
    EXPECT_NE(refused(broken), cortado::testing::kNoError) << broken;
  }
}

// What the client sent stays typed, whatever the template does with it.
TEST(Jinja, KeepsTrackOfWhatIsTyped) {
  const Json given = {
      {"messages", Json::array({{{"role", "user"}, {"content", "a<x>b"}}, {{"role", "no role"}, {"content", "c"}}})},
      {"tools", Json::array({{{"<k>", "<v>"}}})}};
  const auto typed = [&](const std::string& source) {
    const Text text = Template(source).render(given, {{"bos_token", "<s>"}}, 0);
    std::string marked;
    size_t at = 0;
    for (const auto& [begin, end, from] : text.typed()) {
      marked += text.bytes().substr(at, begin - at) + "[" + std::to_string(from) + ":" +
                text.bytes().substr(begin, end - begin) + "]";
      at = end;
    }
    return marked + text.bytes().substr(at);
  };
  const std::string set = "{% set m = messages[0].content %}";
  EXPECT_EQ(typed("{{ bos_token }}<{{ messages[0].role }}>{{ messages[0].content }}"), "<s><user>[0:a<x>b]");
  EXPECT_EQ(typed("{{ messages[1].role ~ messages[1].content }}"), "[1:no rolec]");
  EXPECT_EQ(typed(set + "{{ m.split('<')[1] }}|{{ m[1:3] }}|{{ m | upper }}|{{ m | replace('x', '|') }}"),
            "[0:x>b]|[0:<x]|[0:A<X>B]|[0:a<]|[0:>b]");
  EXPECT_EQ(typed(set + "{{ [m, m] | join(',') }}|{{ '<%s>' % m }}|{{ '<{}>'.format(m) }}|{{ (m ~ '!') | trim }}"),
            "[0:a<x>b],[0:a<x>b]|<[0:a<x>b]>|<[0:a<x>b]>|[0:a<x>b]!");
  EXPECT_EQ(typed("{{ tools | tojson }}"), "[{\"[-1:<k>]\": \"[-1:<v>]\"}]");
  EXPECT_EQ(typed(set + "{% for c in m %}{{ c }}{% endfor %}{{ [m] }}"), "[0:a<x>b]['[0:a<x>b]']");
  EXPECT_EQ(typed(set + "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m) }}{% set y %}{{ m }}!{% endset %}{{ y }}"),
            "<[0:a<x>b]>[0:a<x>b]!");
}

// A stranger's template ends soon, with one line, whatever it does.
TEST(Jinja, HostileTemplates) {
  const std::string deep(100000, '('), chain = "{{ 1" + [] {
    std::string all;
    for (int i = 0; i < 100000; ++i) all += "+1";
    return all;
  }() + " }}";
  std::string nested, elifs = "{% if a %}";
  for (int i = 0; i < 10000; ++i) {
    nested += "{% if true %}";
    elifs += "{% elif a %}";
  }
  const std::string grow = "{% set n = namespace(s=\"abcdefgh\", l=[1, 2]) %}{% for i in range(99) %}";
  const std::vector<std::string> all = {
      "{% for i in range(10**9) %}{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ " + deep + " }}",
      chain,
      nested,
      elifs + "{% endif %}" + deep,
      grow + "{% set n.s = n.s + n.s %}{% endfor %}",
      grow + "{% set n.l = n.l + n.l %}{% endfor %}",
      grow + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
      grow + "{% set n.l = (n.l, n.l) %}{% endfor %}{{ n.l == (n.l, n.l) or n.l }}",
      grow + "{% set n.s = n.s | replace('a', n.s) %}{% endfor %}",
      grow + "{% set n.s = n.s.join(n.s) %}{% endfor %}",
      "{{ 'a' * 10**12 }}",
      "{{ [1] * 10**12 }}",
      "{{ 'a'.center(10**12) }}",
      "{{ '%999999999s' % 1 }}",
      "{{ ('a\n' * 10**6) | indent(1000) }}",
      "{{ 'a'.ljust(10**18) }}",
      "{{ [1] | batch(10**15, 1) | list }}",
      "{{ 5 is divisibleby 0 }}",
      "{{ 1 // 0 }}",
      "{{ 1 % 0 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 9 ** 99 }}",
      "{% set n = namespace() %}{% set n.n = n %}{{ n.n }}",
      "{{ 'x'[::0] }}",
      "{% for i in range(99999) %}{{ '" + std::string(100000, 'x') + "' }}{% endfor %}"};
  for (const std::string& source : all) {
    const std::string why = refused(source);
    EXPECT_NE(why, cortado::testing::kNoError) << source.substr(0, 100);
  }
  // Nothing is wrong with these.
  const std::string chained =
      "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}done";
  EXPECT_EQ(rendered(chained), "done");
  EXPECT_EQ(rendered("{{ 'abc'[9223372036854775807:] }}{{ 'abc'[::9223372036854775807] }}"), "a");
}

}  // namespace
}  // namespace cortado::jinja
