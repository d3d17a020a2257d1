# What users run is optimized as a whole, for the sake of small calls. The objects hold their machine code
# too: tests are linked from that, in a fraction of the time. Sets TUTTI_WHOLE_COMPILE and
# TUTTI_WHOLE_LINK, which are empty where that cannot be done; the build goes on without.
option(TUTTI_LTO "Optimize the library as a whole, where the compiler can" ON)
set(TUTTI_WHOLE_COMPILE)
set(TUTTI_WHOLE_LINK)

# A compiler can't read what another version left in the objects, and CUDA may link with one of its own.
set(linker ${CMAKE_C_COMPILER_VERSION})
if(TUTTI_HAVE_CUDA)
  execute_process(COMMAND ${CMAKE_CUDA_HOST_LINK_LAUNCHER} -dumpfullversion OUTPUT_VARIABLE linker
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()

if(NOT TUTTI_LTO)
  set(whole_hindrance "TUTTI_LTO is off")
elseif(TUTTI_SANITIZE)
  set(whole_hindrance "sanitizers see more without")
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(whole_hindrance "a Debug build")
elseif(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # clang's objects for it hold no machine code before version 17, and want its own linker after.
  set(whole_hindrance "done with gcc only, this is ${CMAKE_C_COMPILER_ID}")
elseif(NOT linker STREQUAL CMAKE_C_COMPILER_VERSION)
  set(whole_hindrance "CUDA links with gcc ${linker}, not ${CMAKE_C_COMPILER_VERSION}")
else()
  include(CheckIPOSupported) # it links a program: a gcc without lto-wrapper or plugin does not pass
  check_ipo_supported(RESULT whole_works OUTPUT whole_output LANGUAGES C)
  if(whole_works)
    set(TUTTI_WHOLE_COMPILE -flto=auto -ffat-lto-objects)
    set(TUTTI_WHOLE_LINK -flto=auto -O2)
  else()
    string(REGEX MATCH "[^\n]*([Ee]rror|not found|could not|cannot)[^\n]*" whole_hindrance
           "${whole_output}")
    string(STRIP "${whole_hindrance}" whole_hindrance)
    if(NOT whole_hindrance)
      set(whole_hindrance "this compiler cannot")
    endif()
  endif()
endif()
if(TUTTI_WHOLE_LINK)
  message(STATUS "tutti: link-time optimization (TUTTI_LTO)")
else()
  message(STATUS "tutti: no link-time optimization: ${whole_hindrance}")
endif()
