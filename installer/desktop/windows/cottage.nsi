; Installs Cottage for one Windows user: no administrator, one page. makensis -DVERSION=1.2.3 -DPAYLOAD=dir -DOUTPUT=file cottage.nsi
Target amd64-unicode
!include "MUI2.nsh"
!include "LogicLib.nsh"
!include "WinVer.nsh"
!include "x64.nsh"

!define RUN "Software\Microsoft\Windows\CurrentVersion\Run"
!define LISTED "Software\Microsoft\Windows\CurrentVersion\Uninstall\Cottage"
!define OURS "Software\Cottage"
!define PLACE "$LOCALAPPDATA\Programs\Cottage"  ; Always here, whatever /D= says: the folder is emptied before each installation.

Name "Cottage"
OutFile "${OUTPUT}"
RequestExecutionLevel user
SetCompressor /SOLID lzma
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
LangString TOO_OLD ${LANG_ENGLISH} "Cottage needs 64-bit Windows 10 or newer."
LangString TOO_OLD ${LANG_GERMAN} "Cottage braucht Windows 10 oder neuer, 64 Bit."

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
  Pop $0
  nsExec::Exec 'taskkill /IM cottage-agent.exe /F'
  Pop $0
!macroend

Section "Cottage"
  !insertmacro END_PROGRAMS
  RMDir /r "$INSTDIR"  ; What an older version had and this one has not.
  SetOutPath "$INSTDIR"
  File /r "${PAYLOAD}\*"
  ; Once only: who has switched it off does not want it back with the next version.
  ReadRegStr $0 HKCU "${OURS}" "Installed"
  ${If} $0 == ""
    WriteRegStr HKCU "${RUN}" "Cottage" '"$INSTDIR\cottage.exe" --hidden'
    WriteRegStr HKCU "${OURS}" "Installed" "1"
  ${EndIf}
  CreateShortcut "$SMPROGRAMS\Cottage.lnk" "$INSTDIR\cottage.exe"
  WriteUninstaller "$INSTDIR\uninstall.exe"
  WriteRegStr HKCU "${LISTED}" "DisplayName" "Cottage"
  WriteRegStr HKCU "${LISTED}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${LISTED}" "DisplayIcon" "$INSTDIR\cottage.exe"
  WriteRegStr HKCU "${LISTED}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${LISTED}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${LISTED}" "NoModify" 1
  WriteRegDWORD HKCU "${LISTED}" "NoRepair" 1
SectionEnd

Section "Uninstall"
  !insertmacro END_PROGRAMS
  RMDir /r "$INSTDIR"
  Delete "$SMPROGRAMS\Cottage.lnk"
  DeleteRegValue HKCU "${RUN}" "Cottage"
  DeleteRegKey HKCU "${LISTED}"
  DeleteRegKey HKCU "${OURS}"
SectionEnd
