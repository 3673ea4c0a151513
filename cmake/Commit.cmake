# Writes OUT, a source file with the commit of the source tree SOURCE ("+" at its end: uncommitted changes; empty: no
# repository). OUT is written only when the commit changes.
execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=10 --dirty=+ --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include \"cortado/base/version.h\"\n\nconst char* const cortado::kCommit = \"${commit}\";\n")
