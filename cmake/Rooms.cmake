# moebatch_room(NAME LINK LIBRARIES...) - one static library per room, from every .c file in it.
# A file named *_avx2.c or *_avx512.c is compiled for that instruction set; the code that calls it
# asks the processor first.
function(moebatch_room name)
  cmake_parse_arguments(ROOM "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.c ${CMAKE_SOURCE_DIR}/${name}/cpu/*.c
    ${CMAKE_SOURCE_DIR}/${name}/cuda/*.c)
  list(FILTER sources EXCLUDE REGEX "/main\\.c$")
  add_library(mb_${name} STATIC ${sources})
  target_link_libraries(mb_${name} PUBLIC ${ROOM_LINK} PRIVATE moebatch_flags)
  foreach(source ${sources})
    if(source MATCHES "_avx2\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    elseif(source MATCHES "_avx512\\.c$")
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vbmi;-mfma;-mf16c;-mprefer-vector-width=512")
    endif()
  endforeach()
endfunction()
