; Installs Cottage for one Windows user: no administrator, one page. makensis -DVERSION=1.2.3 -DPAYLOAD=dir -DOUTPUT=file "-DCOMPRESS=/SOLID lzma" cottage.nsi
Target amd64-unicode
!include "MUI2.nsh"
!include "LogicLib.nsh"
!include "WinVer.nsh"
!include "x64.nsh"

!define RUN "Software\Microsoft\Windows\CurrentVersion\Run"
!define LISTED "Software\Microsoft\Windows\CurrentVersion\Uninstall\Cottage"
!define OURS "Software\Cottage"
!define LINKS "Software\Classes\cottage"  ; Invitations: cottage://join?...
!define PLACE "$LOCALAPPDATA\Programs\Cottage"  ; Always here, whatever /D= says: the folder is emptied before each installation.

Name "Cottage"
OutFile "${OUTPUT}"
RequestExecutionLevel user
AllowSkipFiles off  ; On a full disk nothing is changed, instead of files left out.
SetCompressor ${COMPRESS}
BrandingText "Cottage ${VERSION}"
VIProductVersion "${VERSION}.0"
VIAddVersionKey "ProductName" "Cottage"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "FileDescription" "Cottage: lend this computer's graphics card"
VIAddVersionKey "LegalCopyright" "Apache-2.0"

!define MUI_FINISHPAGE_RUN "$INSTDIR\cottage.exe"
!define MUI_FINISHPAGE_RUN_TEXT "$(START)"
!define MUI_ABORTWARNING
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "German"
LangString START ${LANG_ENGLISH} "Start Cottage"
LangString START ${LANG_GERMAN} "Cottage starten"
LangString HELD ${LANG_ENGLISH} "Files of the old version are in use: close Cottage and try again."
LangString HELD ${LANG_GERMAN} "Dateien der alten Version sind in Gebrauch: Cottage beenden und noch einmal versuchen."
LangString TOO_OLD ${LANG_ENGLISH} "Cottage needs 64-bit Windows 10 or newer."
LangString TOO_OLD ${LANG_GERMAN} "Cottage braucht Windows 10 oder neuer, 64 Bit."

Var AGENTS_HOME
Var STAYS
Var WINDOW

; /SD: an unattended installation must never wait for a click.
Function .onInit
  ${IfNot} ${RunningX64}
  ${OrIfNot} ${AtLeastWin10}
    MessageBox MB_ICONSTOP "$(TOO_OLD)" /SD IDOK
    SetErrorLevel 2
    Quit
  ${EndIf}
  StrCpy $INSTDIR "${PLACE}"
FunctionEnd

Function un.onInit
  StrCpy $INSTDIR "${PLACE}"
FunctionEnd

; A job survives it: the coordinator gives the rest of the round to somebody else.
!macro END_PROGRAMS
  nsExec::Exec 'taskkill /IM cottage.exe /F'
  Pop $WINDOW  ; "0": it ran.
  nsExec::Exec 'taskkill /IM cottage-agent.exe /F'
  Pop $0
!macroend

; With an error where it fails for ten seconds: Windows holds the files of a program for a moment after its end.
!macro MOVE FROM TO
  ${For} $1 1 40
    ClearErrors
    Rename "${FROM}" "${TO}"
    ${IfNot} ${Errors}
      ${ExitFor}
    ${EndIf}
    Sleep 250
  ${Next}
!macroend

!macro BEGIN_PROGRAMS
  ${If} $AGENTS_HOME != ""
    ${If} $WINDOW == "0"
      Exec '"$INSTDIR\cottage.exe" --home "$AGENTS_HOME"'
    ${Else}
      Exec '"$INSTDIR\cottage-agent.exe" run $STAYS --home "$AGENTS_HOME"'
    ${EndIf}
  ${EndIf}
!macroend

Section "Cottage"
  ; Named by an agent that has started this (desktop/agent/updates/setup.py): the new version must answer in it, or the old one
  ; goes on.
  ReadEnvStr $AGENTS_HOME "COTTAGE_SETUP_HOME"
  ReadEnvStr $STAYS "COTTAGE_SETUP_STAYS"
  ; Laid out beside, so that no moment in which the computer may fail leaves half a program. What an older version had and this
  ; one has not goes with its folder.
  RMDir /r "$INSTDIR.new"
  SetOutPath "$INSTDIR.new"
  File /r "${PAYLOAD}\*"
  WriteUninstaller "$INSTDIR.new\uninstall.exe"
  SetOutPath "$TEMP"  ; The current folder of a program keeps its name.
  !insertmacro END_PROGRAMS
  RMDir /r "$INSTDIR.before"
  ${If} ${FileExists} "$INSTDIR\*.*"
    !insertmacro MOVE "$INSTDIR" "$INSTDIR.before"
    ${If} ${Errors}
      RMDir /r "$INSTDIR.new"
      !insertmacro BEGIN_PROGRAMS
      SetErrorLevel 4
      Abort "$(HELD)"
    ${EndIf}
  ${EndIf}
  !insertmacro MOVE "$INSTDIR.new" "$INSTDIR"
  ${If} $AGENTS_HOME != ""
  ${AndIf} ${FileExists} "$INSTDIR.before\*.*"
    nsExec::Exec '"$INSTDIR\cottage-agent.exe" update --answers --home "$AGENTS_HOME"'
    Pop $0
    ${If} $0 != "0"
      !insertmacro MOVE "$INSTDIR" "$INSTDIR.new"
      !insertmacro MOVE "$INSTDIR.before" "$INSTDIR"
      RMDir /r "$INSTDIR.new"
      !insertmacro BEGIN_PROGRAMS
      SetErrorLevel 3
      Quit
    ${EndIf}
  ${EndIf}
  RMDir /r "$INSTDIR.before"

  ; Once only: who has switched it off does not want it back with the next version.
  ReadRegStr $0 HKCU "${OURS}" "Installed"
  ${If} $0 == ""
    WriteRegStr HKCU "${RUN}" "Cottage" '"$INSTDIR\cottage.exe" --hidden'
    WriteRegStr HKCU "${OURS}" "Installed" "1"
  ${EndIf}
  SetOutPath "$INSTDIR"
  CreateShortcut "$SMPROGRAMS\Cottage.lnk" "$INSTDIR\cottage.exe"
  SetOutPath "$TEMP"
  WriteRegStr HKCU "${LINKS}" "" "URL:Cottage invitation"
  WriteRegStr HKCU "${LINKS}" "URL Protocol" ""
  WriteRegStr HKCU "${LINKS}\DefaultIcon" "" "$INSTDIR\cottage.exe"
  ; After -- a link that somebody made can name no option of the program.
  WriteRegStr HKCU "${LINKS}\shell\open\command" "" '"$INSTDIR\cottage.exe" -- "%1"'
  WriteRegStr HKCU "${LISTED}" "DisplayName" "Cottage"
  WriteRegStr HKCU "${LISTED}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${LISTED}" "DisplayIcon" "$INSTDIR\cottage.exe"
  WriteRegStr HKCU "${LISTED}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${LISTED}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${LISTED}" "NoModify" 1
  WriteRegDWORD HKCU "${LISTED}" "NoRepair" 1
  !insertmacro BEGIN_PROGRAMS
SectionEnd

Section "Uninstall"
  !insertmacro END_PROGRAMS
  RMDir /r "$INSTDIR"
  RMDir /r "$INSTDIR.new"
  RMDir /r "$INSTDIR.before"
  Delete "$SMPROGRAMS\Cottage.lnk"
  DeleteRegValue HKCU "${RUN}" "Cottage"
  DeleteRegKey HKCU "${LISTED}"
  DeleteRegKey HKCU "${LINKS}"
  DeleteRegKey HKCU "${OURS}"
SectionEnd
